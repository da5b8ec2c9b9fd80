package main

import (
	"testing"
	"time"

	"mtagd/store/local/backup"
)

// A time that "backup list" prints has whole seconds. It names the point that was printed with it.
func TestARestoreTakesThePointThatIsListed(t *testing.T) {
	at := time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC)
	points := []*backup.Manifest{
		{Data: "d", Point: "first", Time: at.Add(-3 * time.Second)}, {Data: "d", Point: "second", Time: at.Add(400 * time.Millisecond)},
		{Data: "d", Point: "third", Time: at.Add(3 * time.Second)},
	}
	for text, want := range map[string]string{
		shownPoint(points[1], "").Time: "second", "2026-11-20T08:30:00.300Z": "first", "first": "first", "": "third",
	} {
		c := restoreCommand{Point: text}
		if found, _, err := c.find(points); err != nil || found[0].Point != want {
			t.Errorf("--point %q finds %+v, %v; want %s", text, found, err, want)
		}
	}
}
