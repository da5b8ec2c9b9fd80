// Package export writes events in the order of receipt as files: NDJSON, CSV, Parquet. It has no part of the HTTP
// protocol: operators export to files too.
//
//	export.go   Copy: from the feed to a Writer
//	format.go   the formats
//	json.go     NDJSON; an event as one line of JSON, as the feed has it too
//	csv.go      CSV
//	parquet.go  Parquet
//	encoding.go compresses what a Writer writes
//
// All formats have the same columns, named as in the listing:
//
//	id, merchantId, tagId, muid, event_name, event_time, receivedAt, isBot, raw_data
package export

import (
	"context"

	"mtagd/store"
)

// Bounds of a batch. Its events are in memory, and nothing else is sent meanwhile.
const (
	batchEvents = 1000
	batchBytes  = 1 << 20
)

// Copy copies the events of a query to a Writer, batch after batch.
type Copy struct {
	From   store.Feed
	Query  store.FeedQuery // NewCopy has set its end
	To     Writer
	Events uint64 // that were copied
}

// NewCopy returns a Copy of the events of a query. Events that come later are not in it.
func NewCopy(from store.Feed, q store.FeedQuery, to Writer) *Copy {
	if q.UpTo == "" {
		q.UpTo = from.Latest()
	}
	return &Copy{From: from, Query: q, To: to}
}

// Next copies a batch. It returns false when it was the last one, and has closed the Writer then.
func (c *Copy) Next(ctx context.Context) (more bool, err error) {
	events, bytes := 0, 0
	var failed error
	end, err := c.From.Feed(ctx, c.Query, func(e *store.Received) bool {
		failed = c.To.Write(e)
		events++
		bytes += len(e.Raw)
		return failed == nil && events < batchEvents && bytes < batchBytes
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return false, err
	}
	c.Query.After = end.Cursor
	c.Events += uint64(events)
	if !end.More {
		return false, c.To.Close()
	}
	return true, nil
}
