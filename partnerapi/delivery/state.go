package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"mtagd/store"
)

// state is how far a destination is, as it is stored. All events before Cursor are delivered, refused or left out, except
// those in Retry and Replays. So any state that was ever stored loses nothing: at most, events are sent again.
type state struct {
	Cursor   store.Cursor `json:"cursor"`
	Attached bool         `json:"attached,omitempty"` // it is where the shard is (headState), if that is later
	Retry    []retry      `json:"retry,omitempty"`
	Replays  []replaying  `json:"replays,omitempty"`
	Replayed uint64       `json:"replayed,omitempty"` // the last Replay that was begun

	FailingSince time.Time `json:"failingSince,omitzero"` // nothing was taken since then
	Failures     int       `json:"failures,omitempty"`    // in a row
	NextTry      time.Time `json:"nextTry,omitzero"`
	LastError    string    `json:"lastError,omitempty"`
	LastSuccess  time.Time `json:"lastSuccess,omitzero"`

	Counts   counts `json:"counts"`
	Sequence uint64 `json:"sequence"` // of deliveries and dead letters
	Letters  int    `json:"letters"`  // stored dead letters
}

// counts are events.
type counts struct {
	Delivered uint64 `json:"delivered"`
	Filtered  uint64 `json:"filtered"`  // by the filter, or because the platform has no such event
	NoConsent uint64 `json:"noConsent"` // consent that the destination needs was not granted
	Dead      uint64 `json:"dead"`
	Erased    uint64 `json:"erased"` // while they waited
}

// retry is an event that is tried again. It is read from the feed again: so an event that was erased meanwhile is gone.
type retry struct {
	After store.Cursor `json:"after"` // the place before the event
	At    store.Cursor `json:"at"`    // the place after it
	Who   uint32       `json:"who"`   // hash of its muid: events of one visitor stay in order
	Tries int          `json:"tries"`
	Next  time.Time    `json:"next"`
	First time.Time    `json:"first"`
}

// replaying is a range of the feed that is sent again.
type replaying struct {
	Of    uint64       `json:"of,omitempty"` // Replay.ID
	After store.Cursor `json:"after"`
	UpTo  store.Cursor `json:"upTo"`
	From  *time.Time   `json:"from,omitempty"`
	To    *time.Time   `json:"to,omitempty"`
}

// Bounds of what a destination keeps.
const (
	maxRetries    = 1000
	maxLetters    = 1000 // then the destination pauses, with the reason: nothing is dropped
	maxDeliveries = 100

	keptDeliveries = 20   // deliveries that are kept of a round
	maxUnwritten   = 2048 // deliveries of a shard that are not stored yet, without dead letters
	maxBackoff     = time.Hour
)

// backoff returns how long to wait after so many failures in a row.
func backoff(failures int) time.Duration {
	d := min(2*time.Second<<min(failures-1, 12), maxBackoff)
	return time.Duration(float64(d) * (0.5 + rand.Float64()))
}

// Delivery is an attempt to deliver events, or a dead letter.
type Delivery struct {
	ID       string          `json:"id"`
	At       time.Time       `json:"at"`
	State    DeliveryState   `json:"state"`
	Events   int             `json:"events"`
	EventIDs []store.EventID `json:"eventIds"` // the first of them
	Status   int             `json:"status,omitempty"`
	Took     time.Duration   `json:"took,omitempty"`
	Answer   string          `json:"answer,omitempty"` // its first KiB
	Reason   string          `json:"reason,omitempty"`

	After store.Cursor `json:"after"` // the events are after this place, and up to the other one
	UpTo  store.Cursor `json:"upTo"`
}

// DeliveryState is what became of an attempt.
type DeliveryState string

// The states.
const (
	Delivered DeliveryState = "delivered"
	Failed    DeliveryState = "failed" // it is tried again
	Dead      DeliveryState = "dead"   // a dead letter: it is not tried again
)

const maxEventIDs = 20

// document returns the document of a delivery, without its content.
func (d Delivery) document(m store.MerchantID, destination string) store.Document {
	kind := store.Deliveries
	if d.State == Dead {
		kind = store.DeadLetters
	}
	return store.Document{Kind: kind, Merchant: m, ID: destination + "/" + d.ID}
}

// headState is how far a shard is, as it is stored.
type headState struct {
	Cursor store.Cursor `json:"cursor"`
}

// flush writes the states that have changed, and then how far the shard is. A kill in between loses nothing: attached
// destinations are then where the shard was before.
func (sh *shard) flush(ctx context.Context) error {
	sh.flushing.Lock()
	defer sh.flushing.Unlock()
	sh.mu.Lock()
	head := sh.head
	var parts [][]store.Document // a part is written as a whole: what a replay deletes goes with the state that has its ranges
	var err error
	add := func(doc store.Document, content any) {
		text, failed := json.Marshal(content)
		doc.Content, err = text, errors.Join(err, failed)
		parts[len(parts)-1] = append(parts[len(parts)-1], doc)
	}
	type written struct{ deliveries, dropped int }
	flushed := map[*runner]written{}
	sh.unwritten = 0
	for r := range sh.dirty {
		if len(parts) == 0 || len(parts[len(parts)-1]) >= 500 {
			parts = append(parts, nil)
		}
		for _, d := range r.deliveries {
			add(d.document(r.merchant, r.id), d)
		}
		parts[len(parts)-1] = append(parts[len(parts)-1], r.dropped...)
		add(store.Document{Kind: store.DeliveryStates, Merchant: r.merchant, ID: r.id}, r.current())
		flushed[r] = written{len(r.deliveries), len(r.dropped)}
	}
	clear(sh.dirty)
	if head != sh.flushed {
		parts = append(parts, nil) // the last one
		add(store.Document{Kind: store.DeliveryStates, ID: sh.name}, headState{head})
	}
	sh.mu.Unlock()
	for _, docs := range parts {
		if err == nil {
			err = sh.s.Engine.PutDocuments(ctx, docs)
		}
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for r, n := range flushed {
		if err == nil {
			r.deliveries = append([]Delivery(nil), r.deliveries[n.deliveries:]...) // the memory of the others is free
			r.dropped = append([]store.Document(nil), r.dropped[n.dropped:]...)
			continue
		}
		r.deliveries = slices.DeleteFunc(r.deliveries, func(d Delivery) bool { return d.State != Dead }) // these only inform
		r.markDirty()
	}
	if err == nil {
		sh.flushed = head
	}
	return err
}
