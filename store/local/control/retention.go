package control

import (
	"context"
	"slices"
	"strconv"

	"mtagd/store"
)

// DefaultRetention returns how long events of merchants without a retention of their own are kept.
func (d *Data) DefaultRetention() store.Retention {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.state.retention
}

// SetDefaultRetention stores it. So commands that run without a server know it too.
func (d *Data) SetDefaultRetention(ctx context.Context, r store.Retention) error {
	return d.update(ctx, func(c *change) error {
		if r != d.state.retention {
			c.writes = append(c.writes, write{inMeta, keyRetention, []byte(strconv.Itoa(int(r)))})
			c.publish = append(c.publish, func() { d.state.retention = r })
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

func (s *state) retentionOf(id store.MerchantID) store.Retention {
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

// parseRetention reads a stored default.
func parseRetention(b []byte) (store.Retention, error) {
	n, err := strconv.Atoi(string(b))
	return store.Retention(n), err
}
