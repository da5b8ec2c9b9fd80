package local

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"slices"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
)

// maxExpired is how many positions of expired events are held in memory. If a merchant has more, all of its blocks are read
// instead.
const maxExpired = 200_000

// ExpireOf implements removal.Engine.
func (r *remover) ExpireOf(ctx context.Context, id store.MerchantID, before int64) (some bool, err error) {
	m, err := store.NewMerchantKey(id)
	if err != nil {
		return false, err
	}
	begun := r.expiringBefore(id) != math.MinInt64 // a removal was cut off: the archive may have events that the index lacks
	expired, _, err := r.expired(ctx, m, before, 1)
	if err != nil || expired == 0 && !begun {
		return false, err
	}
	if err := r.broken(id); err != nil {
		return false, err
	}
	if err := r.setExpiring(id, before); err != nil {
		return false, err
	}
	if err := r.archiver.moveTo(ctx, r.journal.Committed()); err != nil {
		return false, err
	}
	left, upTo, err := r.expireKnown(ctx, m, before)
	if err != nil {
		return true, err
	}
	if left || begun {
		if err := r.archiver.moveTo(ctx, upTo); err != nil {
			return true, err
		}
		// Not the events of later chunks: the index still has them.
		if _, err := r.rewriteBefore(ctx, m, store.Position{}, store.EndOf(upTo), nil, before); err != nil {
			return true, err
		}
	}
	return true, r.setExpiring(id, math.MinInt64)
}

// ExpiredBefore implements removal.Engine. What was begun is finished, though the retention is longer now.
func (r *remover) ExpiredBefore(id store.MerchantID, now time.Time) int64 {
	return max(r.Data.ExpiredBefore(id, now), r.expiringBefore(id))
}

// Expiring is rules.Data.Expiring, with the merchants whose removal has begun.
func (r *remover) Expiring() []store.MerchantID {
	all := r.Data.Expiring()
	r.changing.Lock()
	all = slices.AppendSeq(all, maps.Keys(r.expiring))
	r.changing.Unlock()
	slices.Sort(all)
	return slices.Compact(all)
}

// expiringFile has the merchants whose expired events are being removed, each with a time (µs since 1970). Earlier events of
// the merchant are in no answer, even if the retention is made longer or the clock goes back, until neither the archive nor
// the index has them.
const expiringFile = "expiring"

// readExpiring reads DIR/expiring. Without it, events that are half removed may count as lost.
func readExpiring(dir string, log *slog.Logger) map[store.MerchantID]int64 {
	all := map[store.MerchantID]int64{}
	if err := readSealed(dir, expiringFile, &all); err != nil {
		log.Warn("the file expiring is damaged: events past the retention that were half removed may count as lost", "dir", dir, "error", err)
	}
	return all
}

// expiringBefore returns the time of a merchant in DIR/expiring; math.MinInt64 when it has none.
func (s *stored) expiringBefore(id store.MerchantID) int64 {
	s.changing.Lock()
	defer s.changing.Unlock()
	if before, ok := s.expiring[id]; ok {
		return before
	}
	return math.MinInt64
}

// setExpiring writes the time of a merchant into DIR/expiring; math.MinInt64 removes the merchant from it. The caller holds
// busy.
func (r *remover) setExpiring(id store.MerchantID, before int64) error {
	if before == r.expiringBefore(id) {
		return nil
	}
	all := maps.Clone(r.expiring) // only the holder of busy changes it
	if all[id] = before; before == math.MinInt64 {
		delete(all, id)
	}
	if err := writeSealed(r.dir, expiringFile, all); err != nil {
		return err
	}
	r.changing.Lock()
	defer r.changing.Unlock()
	r.expiring = all
	return nil
}

// expireKnown removes the expired events that the index has: first from the archive, because the index knows where they
// are, and then from the index. After a kill in between, the index has events that the archive does not have. They are
// before the time in DIR/expiring, so no answer has them, and the next call removes them. left reports whether the archive
// may still have expired events, of chunks up to upTo, that the index has no more: backdated ones that came in meanwhile.
func (r *remover) expireKnown(ctx context.Context, m store.MerchantKey, from int64) (left bool, upTo uint64, err error) {
	was := r.index.use()
	was.users.Done() // it is only compared
	total, positions, err := r.expired(ctx, m, from, maxExpired)
	if err != nil {
		return false, 0, err
	}
	removed := uint64(0)
	if total > 0 {
		slices.SortFunc(positions, store.Position.Compare)
		first, last := positions[0], positions[len(positions)-1]
		if total > maxExpired {
			first, last, positions = store.Position{}, endOfTime, nil
		}
		if removed, err = r.rewriteBefore(ctx, m, first, last, positions, from); err != nil {
			return false, 0, err
		}
	}
	defer r.change(m)(0) // 0: the removed events are counted already
	boundary := r.archive.Boundary()
	err = r.index.withIndex(func(x *usedIndex) error {
		var indexed uint64
		indexed, upTo, err = x.RemoveBefore(ctx, m, from)
		left = indexed > removed || x != was // a rebuilt index has others
		upTo = max(upTo, boundary)           // and covers too little until it is merged
		return err
	})
	return left, upTo, err
}

// rewriteBefore removes the events of a merchant from the archive that are before a time and between two positions; at as in
// archive.RewriteSome. It takes long. So it makes many small changes, and runs new erasures in between. The caller holds busy.
func (r *remover) rewriteBefore(ctx context.Context, m store.MerchantKey, first, last store.Position, at []store.Position, from int64) (events uint64, err error) {
	pace := r.background.pace(expireWork)
	for more := true; more && err == nil; {
		done := r.change(m)
		var removed uint64
		removed, first, more, err = r.archive.RewriteSome(ctx, m, first, last, at, func(stored archive.Event) bool {
			event, err := journal.DecodeBody(m, stored.Position, stored.Body)
			return err != nil || event.Time >= from
		}, r.damaged)
		done(removed)
		events += removed
		if err == nil {
			if err := r.runner.Run(ctx); err != nil && ctx.Err() == nil {
				r.logFailure("an erasure", err)
			}
		}
		r.busy.Unlock() // a waiting repair goes first
		pace()
		r.busy.Lock()
	}
	return events, err
}

// expired returns how many events of a merchant are before a time, and the positions of up to n of them.
func (r *remover) expired(ctx context.Context, m store.MerchantKey, before int64, n int) (total uint64, positions []store.Position, err error) {
	err = r.index.withCommitted(ctx, func(x *usedIndex) (err error) {
		total, positions, err = x.Page(ctx, m, rank.NewSelection(store.Query{To: new(timeOf(before - 1)), SortBy: store.ByTime, Asc: true, Limit: n}))
		return err
	})
	return total, positions, err
}

var endOfTime = store.Position{Seq: math.MaxUint64, Index: math.MaxUint16}
