package local

import (
	"context"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
)

// Events implements store.Events:
//
//  1. Wait until the index has all events that were committed before the call.
//  2. Let the index count the events and find the positions of the page. If its counts do not suffice, scan for them
//     (overflow.go).
//  3. Read the events at these positions from the journal.
func (e *engine) Events(ctx context.Context, q store.Query) (store.Page, error) {
	m, err := codec.NewMerchantKey(q.Merchant)
	if err != nil {
		return store.Page{}, err
	}
	committed := e.journal.Committed()
	if err := e.index.Wait(ctx, committed); err != nil {
		return store.Page{}, err
	}
	s := rank.NewSelection(q)
	total, found, counted, err := e.index.Page(ctx, m, s)
	if err != nil {
		return store.Page{}, err
	}
	var wanted []journal.Wanted
	if counted {
		wanted = make([]journal.Wanted, len(found))
		for i, at := range found {
			wanted[i] = journal.Wanted{Position: at, N: i}
		}
	} else {
		scan := overflowScan{e, m, s, committed}
		if total, wanted, err = scan.page(ctx); err != nil {
			return store.Page{}, err
		}
	}
	page := store.Page{Events: make([]store.Event, len(wanted)), Total: int(total)}
	if err := e.journal.Read(ctx, wanted, func(n int, event journal.Event) { page.Events[n] = event.Listed() }); err != nil {
		return store.Page{}, err
	}
	return page, nil
}
