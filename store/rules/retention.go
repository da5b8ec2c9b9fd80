package rules

import (
	"context"
	"math"
	"slices"
	"strconv"
	"time"

	"mtagd/store"
)

// ExpiryDelay is how long an event stays after it is past the retention: queries that began before may still read it.
const ExpiryDelay = time.Minute

// RetainedFrom returns the time (µs since 1970) before which events with a retention are in no answer; math.MinInt64 when
// all are kept. Whatever reads events for an answer leaves out earlier ones.
func RetainedFrom(r store.Retention, now time.Time) int64 {
	if cutoff, ok := r.Cutoff(now); ok {
		return cutoff.UnixMicro()
	}
	return math.MinInt64
}

// SetDefaultRetention stores how long events of merchants without a retention of their own are kept. So commands that run
// without a server know it too.
func (d *Data) SetDefaultRetention(ctx context.Context, r store.Retention) error {
	return d.update(ctx, func(c *change) error {
		if r != d.state.retention {
			c.write(Meta, metaRetention, []byte(strconv.Itoa(int(r))))
		}
		return nil
	})
}

// RetentionOf returns how long a merchant's events are kept: a number of days, or Forever.
func (d *Data) RetentionOf(id store.MerchantID) store.Retention {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.state.retentionOf(id)
}

// ExpiredBefore implements removal.Engine.
func (d *Data) ExpiredBefore(id store.MerchantID, now time.Time) int64 {
	from := RetainedFrom(d.RetentionOf(id), now)
	if from == math.MinInt64 {
		return from
	}
	return from - ExpiryDelay.Microseconds()
}

func (s *State) retentionOf(id store.MerchantID) store.Retention {
	if r := s.merchants[id].Retention; r != 0 {
		return r
	}
	return s.retention
}

// Expiring returns the merchants whose events are not kept forever, sorted.
func (d *Data) Expiring() (all []store.MerchantID) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	for id := range d.state.merchants {
		if d.state.retentionOf(id) > 0 {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all
}
