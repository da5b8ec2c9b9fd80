package rules

import (
	"context"
	"crypto/rand"
	"math"
	"slices"
	"strconv"
	"time"

	"mtagd/store"
)

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

// ID returns the id of the data. Data without one gets it now.
func (d *Data) ID() (string, error) { return d.newID(false) }

// ReplaceID gives the data another id, because it has become another one: it was restored. It ends all sessions, as
// some of them may have been ended since the backup.
func (d *Data) ReplaceID() (id string, err error) { return d.newID(true) }

func (d *Data) newID(replace bool) (id string, err error) {
	err = d.update(context.Background(), func(c *change) error {
		if id = d.state.id; id != "" && !replace {
			return nil
		}
		if replace {
			for s := range d.state.sessions {
				c.delete(Sessions, string(s))
			}
		}
		id = rand.Text()[:16]
		c.write(Meta, metaID, []byte(id))
		return nil
	})
	return id, err
}
