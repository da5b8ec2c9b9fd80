// Package export writes events in the order of receipt as files: NDJSON, CSV, Parquet. It has no part of the HTTP
// protocol.
//
//	export.go   Copy: from the feed to a Writer
//	format.go   the formats; compresses what a Writer writes
//	fields.go   the fields of an event
//	json.go     NDJSON; an event as one line of JSON, as the feed has it too
//	csv.go      CSV
//	parquet.go  Parquet
//	thrift.go   the encoding of its metadata
//
// All formats have the same columns: Fields.
package export

import (
	"context"
	"fmt"

	"mtagd/store"
)

// Bounds of a batch. Its events are in memory, and nothing else is sent meanwhile.
const (
	batchEvents = 1000
	batchBytes  = 1 << 20
)

// Source is the part of an engine that a Copy reads.
type Source interface {
	store.Feed
	// Merchant returns a merchant. KindNotFound: it does not exist.
	Merchant(ctx context.Context, id store.MerchantID) (store.Merchant, error)
}

// Copy copies the events of a query to a Writer, batch after batch.
type Copy struct {
	From   Source
	Query  store.FeedQuery // NewCopy has set its end
	To     Writer
	Events uint64 // that were copied
}

// NewCopy returns a Copy of the events of a query. Events that come later are not in it.
func NewCopy(ctx context.Context, from Source, q store.FeedQuery, to Writer) (*Copy, error) {
	if q.UpTo == "" {
		var err error
		if q.UpTo, err = from.Latest(ctx); err != nil {
			return nil, err
		}
	}
	return &Copy{From: from, Query: q, To: to}, nil
}

// Next copies a batch. It returns false when it was the last one, and has closed the Writer then. When a merchant was
// deleted meanwhile, some of its events may be missing: then Next fails instead. KindNotFound: a merchant.
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
	if end.More {
		return true, nil
	}
	for _, id := range c.Query.Merchants {
		if _, err := c.From.Merchant(ctx, id); err != nil {
			return false, fmt.Errorf("the file is not complete: merchant %s: %w", id, err)
		}
	}
	return false, c.To.Close()
}
