package local

import (
	"context"
	"errors"
	"fmt"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
)

// Events implements store.Events:
//
//  1. Wait until the index has all events that were committed before the call.
//  2. Let the index count the events and find the positions of the page.
//  3. Read the events at these positions from the archive and the journal.
//  4. If the page has events of damaged chunks or blocks, note these, and begin again at 2.
//
// When the index is damaged where the query reads it, Events fails with KindUnavailable, and the index is rebuilt.
func (e *engine) Events(ctx context.Context, q store.Query) (store.Page, error) {
	m, err := codec.NewMerchantKey(q.Merchant)
	if err != nil {
		return store.Page{}, err
	}
	if e.IsRemoved(q.Merchant) {
		return store.Page{}, ctx.Err()
	}
	q = e.kept(q)
	var page store.Page
	err = e.withIndex(func(x *usedIndex) (err error) {
		page, err = e.pageOf(ctx, x, m, q)
		return err
	})
	return page, err
}

// withIndex calls read with the index, and again when the index is replaced while read waits for it. When the index is damaged
// where read needs it, withIndex fails with KindUnavailable, and the index is rebuilt.
func (e *engine) withIndex(read func(x *usedIndex) error) error {
	x := e.index.use()
	err := func() error {
		defer x.users.Done()
		return read(x)
	}()
	if errors.Is(err, errReplaced) {
		return e.withIndex(read)
	}
	if errors.Is(err, codec.ErrCorrupt) {
		e.startRebuild(x.Index, err)
		err = fmt.Errorf("%w: %w", store.Unavailable("the index of the events is being rebuilt"), err)
	}
	return err
}

// pageOf does the four steps of Events with an index. It returns codec.ErrCorrupt if the index is damaged.
func (e *engine) pageOf(ctx context.Context, x *usedIndex, m codec.MerchantKey, q store.Query) (store.Page, error) {
	if err := x.wait(ctx, e.journal.Committed()); err != nil {
		return store.Page{}, err
	}
	for range maxNoted {
		page, err := e.page(ctx, x, m, q)
		if !isDamage(err) {
			return page, err
		}
		if err := e.noteDamage(ctx, x, err); err != nil {
			return store.Page{}, err
		}
	}
	return store.Page{}, store.Unavailable("damaged events are being taken out of the index")
}

// Summary implements store.Events. It needs only the index.
func (e *engine) Summary(ctx context.Context, q store.SummaryQuery) (store.Summary, error) {
	var merchants []rank.Kept
	seen := map[codec.MerchantKey]bool{}
	for _, id := range e.WithoutRemoved(q.Merchants) {
		m, err := codec.NewMerchantKey(id)
		if err != nil {
			return store.Summary{}, err
		}
		if !seen[m] {
			seen[m] = true
			merchants = append(merchants, rank.Kept{Merchant: m, From: e.keptFrom(id)})
		}
	}
	var summary store.Summary
	err := e.withIndex(func(x *usedIndex) (err error) {
		if err := x.wait(ctx, e.journal.Committed()); err != nil {
			return err
		}
		summary, err = x.Summarize(ctx, merchants, &q)
		return err
	})
	return summary, err
}

// Usage implements store.Events.
func (e *engine) Usage(ctx context.Context, merchants []store.MerchantID) ([]store.Usage, error) {
	usage := make([]store.Usage, len(merchants))
	err := e.withIndex(func(x *usedIndex) error {
		if err := x.wait(ctx, e.journal.Committed()); err != nil {
			return err
		}
		for i, id := range merchants {
			m, err := codec.NewMerchantKey(id)
			if err != nil {
				return err
			}
			if e.IsRemoved(id) {
				continue
			}
			if usage[i].Events, usage[i].Bytes, err = x.Usage(ctx, m); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return usage, nil
}

// maxNoted is how often one call of Events notes damaged chunks or blocks before it fails.
const maxNoted = 3

// page reads one page.
func (e *engine) page(ctx context.Context, x *usedIndex, m codec.MerchantKey, q store.Query) (store.Page, error) {
	total, found, err := x.Page(ctx, m, rank.NewSelection(q))
	if err != nil {
		return store.Page{}, err
	}
	page := store.Page{Events: make([]store.Event, len(found)), Total: int(total)}
	if err := e.readEvents(ctx, m, found, func(n int, event journal.Event) { page.Events[n] = event.Listed() }); err != nil {
		return store.Page{}, err
	}
	return page, nil
}
