package local

import (
	"context"
	"math"
	"sync"
	"time"

	"mtagd/store"
	"mtagd/store/local/control"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
	"mtagd/store/rules"
)

// reader answers what is asked of the events.
type reader struct {
	*stored
	control    *control.Data
	index      *liveIndex
	background *background
	watchers   *watchers
	now        func() time.Time

	verifying sync.RWMutex // held for reading by long reads, which Close waits for: verifications, the feed, personal data, backups
}

// retainedFrom is rules.RetainedFrom for a merchant, or later while expired events are removed.
func (r *reader) retainedFrom(id store.MerchantID) int64 {
	return max(rules.RetainedFrom(r.control.RetentionOf(id), r.now()), r.expiringBefore(id))
}

// Events implements store.Events:
//
//  1. Wait until the index has all events that were committed before the call.
//  2. Let the index count the events and find the positions of the page.
//  3. Read the events at these positions from the archive and the journal.
//  4. If the page has events of damaged chunks or blocks, note these, and begin again at 2.
//
// When the index is damaged where the query reads it, Events fails with KindUnavailable, and the index is rebuilt.
func (r *reader) Events(ctx context.Context, q store.Query) (store.Page, error) {
	r.background.note()
	m, err := store.NewMerchantKey(q.Merchant)
	if err != nil {
		return store.Page{}, err
	}
	if r.control.IsRemoved(q.Merchant) {
		return store.Page{}, ctx.Err()
	}
	if from := r.retainedFrom(q.Merchant); from != math.MinInt64 && (q.From == nil || q.From.UnixMicro() < from) {
		q.From = new(timeOf(from))
	}
	var page store.Page
	err = r.index.withCommitted(ctx, func(x *usedIndex) (err error) {
		page, err = r.pageOf(ctx, x, m, q)
		return err
	})
	return page, err
}

// pageOf does the steps 2 to 4 of Events with an index. It returns codec.ErrCorrupt if the index is damaged.
func (r *reader) pageOf(ctx context.Context, x *usedIndex, m store.MerchantKey, q store.Query) (store.Page, error) {
	for range maxNoted {
		total, found, err := x.Page(ctx, m, rank.NewSelection(q))
		if err != nil {
			return store.Page{}, err
		}
		page := store.Page{Events: make([]store.Event, len(found)), Total: int(total)}
		err = r.readEvents(ctx, m, found, func(n int, event journal.Event) { page.Events[n] = event.Listed() })
		if !isDamage(err) {
			return page, err
		}
		if err := r.noteDamage(ctx, x.Index, err); err != nil {
			return store.Page{}, err
		}
	}
	return store.Page{}, store.Unavailable("damaged events are being taken out of the index")
}

// Summary implements store.Events. It needs only the index.
func (r *reader) Summary(ctx context.Context, q store.SummaryQuery) (store.Summary, error) {
	r.background.note()
	var merchants []rank.Kept
	seen := map[store.MerchantKey]bool{}
	for _, id := range r.control.WithoutRemoved(q.Merchants) {
		m, err := store.NewMerchantKey(id)
		if err != nil {
			return store.Summary{}, err
		}
		if !seen[m] {
			seen[m] = true
			merchants = append(merchants, rank.Kept{Merchant: m, From: r.retainedFrom(id)})
		}
	}
	var summary store.Summary
	err := r.index.withCommitted(ctx, func(x *usedIndex) (err error) {
		summary, err = x.Summarize(ctx, merchants, &q)
		return err
	})
	return summary, err
}

// Usage implements store.Events.
func (r *reader) Usage(ctx context.Context, merchants []store.MerchantID) ([]store.Usage, error) {
	usage := make([]store.Usage, len(merchants))
	err := r.index.withCommitted(ctx, func(x *usedIndex) error {
		for i, id := range merchants {
			m, err := store.NewMerchantKey(id)
			if err != nil {
				return err
			}
			if r.control.IsRemoved(id) {
				continue
			}
			if usage[i].Events, usage[i].Bytes, err = x.Usage(ctx, m); err != nil {
				return err
			}
		}
		return nil
	})
	return usage, err
}

// maxNoted is how often one call of Events notes damaged chunks or blocks before it fails.
const maxNoted = 3
