package store

import (
	"context"
	"time"
)

// Finding is something that Verify has found wrong.
type Finding struct {
	Part    Part   `json:"part"`
	Where   string `json:"where"`   // the file, chunk or record
	Problem string `json:"problem"` // continues a sentence that starts with Where

	// What is known of the events that it concerns.
	Events    uint64       `json:"events,omitempty"`
	Merchants []MerchantID `json:"merchants,omitempty"`
	From      time.Time    `json:"from,omitzero"` // the earliest of their times
	To        time.Time    `json:"to,omitzero"`   // the latest of their times
}

// Part is a part of an engine's data.
type Part string

// The parts, in the order in which Verify reads them.
const (
	PartControl Part = "control" // partners, keys, merchants, tags
	PartIndex   Part = "index"   // the index of the events
	PartEvents  Part = "events"  // events, identity links, remembered event_ids
	PartTags    Part = "tags"    // the tags that events name: they exist, and are of the events' merchants
)

// Verification gets what Verify finds. One goroutine makes all calls, and it holds no lock and no transaction meanwhile.
type Verification struct {
	Found func(Finding)
	// Read is called after each short read. A caller that paces the verification waits in it.
	Read func(p Part, done, total uint64)
}

// Verified counts what Verify has read.
type Verified struct {
	Records uint64 `json:"controlRecords"`
	Entries uint64 `json:"indexEntries"`
	Chunks  uint64 `json:"chunks"`
	Events  uint64 `json:"events"`
	Links   uint64 `json:"identityLinks"`
	Marks   uint64 `json:"rememberedEventIds"`
}

// Verify is Engine.Verify as a function.
type Verify func(ctx context.Context, v Verification) (Verified, error)
