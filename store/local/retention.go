package local

import (
	"context"
	"iter"
	"math"
	"slices"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
)

// keptFrom returns the time (µs since 1970) before which a merchant's events are in no answer; math.MinInt64 when all are kept.
// All that reads events for an answer asks it.
func (e *engine) keptFrom(id store.MerchantID) int64 {
	return keptFrom(e.RetentionOf(id), e.opt.Now())
}

func keptFrom(r store.Retention, now time.Time) int64 {
	if r <= 0 {
		return math.MinInt64
	}
	return now.AddDate(0, 0, -int(r)).UnixMicro()
}

// kept returns a query without the events that are past the retention.
func (e *engine) kept(q store.Query) store.Query {
	if from := e.keptFrom(q.Merchant); from != math.MinInt64 && (q.From == nil || q.From.UnixMicro() < from) {
		q.From = new(timeOf(from))
	}
	return q
}

// Events that are past the retention are removed every expiryInterval, but none before it is past for expiryDelay: queries
// that began before may still read it.
const (
	expiryInterval = 20 * time.Minute
	expiryDelay    = time.Minute

	// maxExpired is how many positions of removed events are in memory. When there are more, all of a merchant's blocks are
	// read.
	maxExpired = 200_000

	// neighbourGap is the time (µs) between the receipt of events that are neighbours.
	neighbourGap = uint64(10 * time.Minute / time.Microsecond)
)

// expire removes the events of all merchants that are past the retention.
func (l *life) expire(ctx context.Context) error {
	archived := false
	for _, id := range l.e.Expiring() {
		m, err := codec.NewMerchantKey(id)
		if err != nil {
			return err
		}
		from := l.e.keptFrom(id)
		if from == math.MinInt64 {
			continue // it was changed just now
		}
		from -= expiryDelay.Microseconds()
		expired, _, err := l.expired(ctx, m, from, 1)
		if err != nil {
			return err
		}
		if expired == 0 {
			continue
		}
		if !archived {
			if err := l.e.archiver.moveTo(ctx, l.e.journal.Committed()); err != nil {
				return err
			}
			archived = true
		}
		if err := l.expireOf(ctx, m, from); err != nil {
			return err
		}
	}
	if archived {
		return l.e.archiver.reclaim()
	}
	return nil
}

// expireOf removes the events of one merchant before a time.
func (l *life) expireOf(ctx context.Context, m codec.MerchantKey, from int64) error {
	left, err := l.expireKnown(ctx, m, from)
	if err != nil || !left {
		return err
	}
	if err := l.e.archiver.moveTo(ctx, l.e.journal.Committed()); err != nil {
		return err
	}
	defer l.change(m)()
	_, err = l.rewriteBefore(ctx, m, codec.Position{}, endOfTime, from)
	return err
}

// expireKnown removes the events that the index has: first from the archive, as the index knows where they are. After a kill in
// between, the index has events that the archive does not have; no answer has them, and the next call removes them. It reports
// whether the archive may have more events: backdated ones that came in meanwhile.
func (l *life) expireKnown(ctx context.Context, m codec.MerchantKey, from int64) (left bool, err error) {
	defer l.change(m)()
	total, positions, err := l.expired(ctx, m, from, maxExpired)
	if err != nil {
		return false, err
	}
	removed := uint64(0)
	if total > maxExpired {
		removed, err = l.rewriteBefore(ctx, m, codec.Position{}, endOfTime, from)
	} else {
		slices.SortFunc(positions, codec.Position.Compare)
		for near := range neighbours(positions) {
			var n uint64
			if n, err = l.rewriteBefore(ctx, m, near[0], near[len(near)-1], from); err != nil {
				break
			}
			removed += n
		}
	}
	if err != nil {
		return false, err
	}
	err = l.e.withIndex(func(x *usedIndex) error {
		indexed, err := x.RemoveBefore(ctx, m, from)
		left = indexed.Events > removed
		return err
	})
	return left, err
}

// rewriteBefore removes the events of a merchant before a time from the archive, between two positions.
func (l *life) rewriteBefore(ctx context.Context, m codec.MerchantKey, first, last codec.Position, from int64) (events uint64, err error) {
	removed, err := l.e.archive.Rewrite(ctx, m, first, last, func(stored archive.Event) bool {
		event, err := journal.DecodeBody(m, stored.Position, stored.Body)
		return err != nil || event.Time >= from
	}, l.damaged, l.e.archiver.paceBy(900)) // there is an hour for it
	return removed.Events, err
}

// neighbours splits sorted positions where much was received in between: what is next to each other is rewritten together.
func neighbours(positions []codec.Position) iter.Seq[[]codec.Position] {
	return func(yield func([]codec.Position) bool) {
		for len(positions) > 0 {
			n := 1
			for n < len(positions) && positions[n].Seq-positions[n-1].Seq <= neighbourGap {
				n++
			}
			if !yield(positions[:n]) {
				return
			}
			positions = positions[n:]
		}
	}
}

// expired returns how many events of a merchant are before a time, and the positions of up to n of them.
func (l *life) expired(ctx context.Context, m codec.MerchantKey, before int64, n int) (total uint64, positions []codec.Position, err error) {
	err = l.e.withIndex(func(x *usedIndex) (err error) {
		if err := x.wait(ctx, l.e.journal.Committed()); err != nil {
			return err
		}
		total, positions, err = x.Page(ctx, m, rank.NewSelection(store.Query{To: new(timeOf(before - 1)), SortBy: store.ByTime, Asc: true, Limit: n}))
		return err
	})
	return total, positions, err
}

var endOfTime = codec.Position{Seq: math.MaxUint64, Index: math.MaxUint16}
