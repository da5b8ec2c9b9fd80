package local

import (
	"context"
	"errors"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
)

// Events implements store.Events:
//
//  1. Wait until the index has all events that were committed before the call.
//  2. Let the index count the events and find the positions of the page.
//  3. Read the events at these positions from the archive and the journal.
//  4. If the page has events of damaged chunks or blocks, set these aside, and begin again at 2.
func (e *engine) Events(ctx context.Context, q store.Query) (store.Page, error) {
	m, err := codec.NewMerchantKey(q.Merchant)
	if err != nil {
		return store.Page{}, err
	}
	if e.IsRemoved(q.Merchant) {
		return store.Page{}, ctx.Err()
	}
	q = e.kept(q)
	if err := e.index.Wait(ctx, e.journal.Committed()); err != nil {
		return store.Page{}, err
	}
	for range maxSetAside {
		page, err := e.page(ctx, m, q)
		if damaged, ok := errors.AsType[journal.DamagedChunks](err); ok {
			err = e.setAside(ctx, damaged)
		} else if damaged, ok := errors.AsType[archive.Damaged](err); ok {
			err = e.setAsideArchived(ctx, damaged)
		} else {
			return page, err
		}
		if err != nil {
			return store.Page{}, err
		}
	}
	return store.Page{}, store.Unavailable("damaged events are being set aside")
}

// maxSetAside is how often one call of Events sets damaged chunks aside.
const maxSetAside = 3

// page reads one page.
func (e *engine) page(ctx context.Context, m codec.MerchantKey, q store.Query) (store.Page, error) {
	total, found, err := e.index.Page(ctx, m, rank.NewSelection(q))
	if err != nil {
		return store.Page{}, err
	}
	page := store.Page{Events: make([]store.Event, len(found)), Total: int(total)}
	if err := e.readEvents(ctx, m, found, func(n int, event journal.Event) { page.Events[n] = event.Listed() }); err != nil {
		return store.Page{}, err
	}
	return page, nil
}
