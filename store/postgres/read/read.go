// Package read reads events: pages, summaries, feeds, personal data. It also verifies all data.
//
//	cover.go    splits a time range into spans for which there are counters
//	select.go   counts the events of spans
//	listing.go  Events: one page of a merchant's events; Usage
//	names.go    pages by name
//	summary.go  Summary
//	feed.go     Feed: events in the order of receipt
//	persons.go  PersonalData
//	verify.go   Verify
//	verifyevents.go  checks the events of a merchant, in pieces
package read

import (
	"cmp"
	"strings"
	"time"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/control"
	"mtagd/store/rules"
	"mtagd/store/watch"
)

// Reader reads the events of a database.
type Reader struct {
	watch.Watchers // events of this node wake them immediately, those of other nodes within control.FollowInterval

	db          *conn.DB
	control     *control.Control
	verifyPiece int64
}

// New returns a reader of a database. verifyPiece is for tests: about how many events Verify reads at once; 0: the default.
func New(db *conn.DB, c *control.Control, verifyAtOnce int64) *Reader {
	return &Reader{db: db, control: c, verifyPiece: cmp.Or(verifyAtOnce, verifyPiece)}
}

// EventColumns are the columns of an event but its body, which comes after them.
var EventColumns = "seq, idx, at, bot, tag, name, muid, " + detailColumns

var detailColumns = strings.Join(store.DetailColumns, ", ")

// eventRow reads EventColumns and the body.
type eventRow struct {
	rules.PersonalEvent
	time int64
	muid []byte
}

func (r *eventRow) fields() []any {
	return append(append([]any{&r.At.Seq, &r.At.Index, &r.time, &r.Bot, &r.Tag, &r.Name, &r.muid}, r.Values()...), &r.Raw)
}

// assembled returns the event that was read, and fills in what has no column.
func (r *eventRow) assembled() store.Event {
	r.ID, r.MUID, r.Time = r.At.EventID(), store.MUID(r.muid), TimeAt(r.time)
	return r.Event
}

func TimeAt(micros int64) time.Time { return time.UnixMicro(micros).UTC() }
