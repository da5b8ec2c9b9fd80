package local

import (
	"context"
	"fmt"
	"math"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/journal"
)

// expected counts the events of a merchant that an answer reads, and knows how many it must read: those from a time on
// that the index counts in the chunks up to upTo. The index counts as of one moment, and knows nothing of the archive.
// Events that are removed while the answer reads may be missing.
type expected struct {
	r      *reader
	m      store.MerchantKey
	from   int64  // µs since 1970: earlier events are past the retention and being removed
	upTo   uint64 // the answer reads all chunks up to this one
	events uint64

	removed uint64 // of the merchant, when the index was asked
	read    uint64
}

func (r *reader) expect(ctx context.Context, m store.MerchantKey) (*expected, error) {
	x := &expected{r: r, m: m, from: r.retainedFrom(m.ID()), removed: r.removedOf(m)}
	err := r.index.withCommitted(ctx, func(u *usedIndex) (err error) {
		x.events, x.upTo, err = u.CountFrom(ctx, m, x.from)
		return err
	})
	return x, err
}

// check returns an error when the answer has read too few events. Then all data is verified, which notes what is lost.
func (x *expected) check() error {
	missing := func() uint64 {
		if has := x.read + x.r.removedOf(x.m) - x.removed; has < x.events {
			return x.events - has
		}
		return 0
	}
	if missing() == 0 {
		return nil
	}
	x.r.removing.Lock() // a removal may be under way
	n := missing()
	x.r.removing.Unlock()
	switch {
	case n == 0:
		return nil
	case x.r.control.IsRemoved(x.m.ID()):
		return store.NotFound("merchant")
	}
	return x.r.shorts.note(x.m, fmt.Errorf("%d of %d events of merchant %s were not found", n, x.events, x.m.ID()))
}

// checkCounts compares the events stored of each merchant with what the index counts. Nothing may be moved meanwhile.
func (r *reader) checkCounts(ctx context.Context) error {
	r.removing.Lock()
	defer r.removing.Unlock()
	type counted struct{ events, read, upTo uint64 }
	all := map[store.MerchantKey]*counted{}
	damaged, from, upTo := false, r.archive.Boundary(), uint64(0)
	err := r.index.withCommitted(ctx, func(u *usedIndex) error {
		of := func(m store.MerchantKey) (c *counted, err error) {
			if c = all[m]; c == nil {
				c = &counted{}
				all[m] = c
				c.events, c.upTo, err = u.CountFrom(ctx, m, r.retainedFrom(m.ID()))
				upTo = max(upTo, c.upTo)
			}
			return c, err
		}
		stored, err := u.StoredMerchants()
		for _, m := range stored {
			if err == nil {
				_, err = of(m)
			}
		}
		if err == nil {
			err = r.archive.Each(func(m store.MerchantKey, has archive.Usage) error {
				c, err := of(m)
				c.read += has.Events
				return err
			})
		}
		for more := true; more && err == nil; { // what was committed meanwhile may count too
			before := from
			err = r.journal.Since(from, math.MaxUint64, func(events []journal.Event, last uint64) error {
				from = last
				for i := range events {
					c, err := of(events[i].Merchant)
					if err != nil {
						return err
					}
					if last <= c.upTo {
						c.read++
					}
				}
				return ctx.Err()
			}, func(d journal.DamagedChunk) { from, damaged = d.Seq, damaged || !r.damage.isNoted(d.Seq) })
			more = from < upTo && from > before
		}
		return err
	})
	for m, c := range all {
		if err == nil && c.read < c.events && !damaged && !r.control.IsRemoved(m.ID()) { // else it is not known how many events the chunk has
			err = r.shorts.note(m, fmt.Errorf("%d of %d events of merchant %s were not found", c.events-c.read, c.events, m.ID()))
		}
	}
	return err
}
