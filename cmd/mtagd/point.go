package main

import (
	"mtagd/store"
	"mtagd/store/local/backup"
)

// pointJSON is a point as it is printed.
type pointJSON struct {
	Data      string `json:"data"`
	Point     string `json:"point"`
	Time      string `json:"time"`
	Kind      string `json:"kind"`
	Why       string `json:"why,omitempty"`
	Bytes     int64  `json:"bytes"`
	Events    int    `json:"events"`
	Damaged   int    `json:"damagedChunks,omitempty"`
	Encrypted bool   `json:"encrypted"`
}

func shownPoint(m *backup.Manifest, why string) pointJSON {
	kind := "increment"
	if m.Parent == "" {
		kind = "base"
	} else if m.Small {
		kind = "small"
	}
	return pointJSON{m.Data, m.Point, store.FormatTime(m.Time), kind, why, m.Written(), m.Count.Events, len(m.Count.Damaged), len(m.Recipients) > 0}
}
