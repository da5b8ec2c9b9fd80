package control

import (
	"cmp"
	"context"
	"encoding/hex"
	"iter"
	"maps"
	"slices"
	"strings"

	"mtagd/store"
)

// AddErasure notes an erasure, or returns the one that it repeats (store.Erasure.Admit). With suppress, the person's events are refused
// from now on.
func (d *Data) AddErasure(ctx context.Context, e store.Erasure) (store.Erasure, error) {
	err := d.update(ctx, func(c *change) error {
		m, err := d.state.merchant(e.Merchant)
		if err != nil {
			return err
		}
		e.Partner, e.At = m.Partner, d.now().UTC()
		same, err := e.Admit(d.state.open())
		if err != nil {
			return err
		}
		if same.ID != "" {
			suppress := e.Suppress
			if e = same; e.Suppress || !suppress {
				return nil
			}
			e.Suppress = true
		}
		c.suppress(e, e.Person.MUIDs...)
		c.suppress(e, e.Person.Identifiers...)
		return cmp.Or(c.putErasure(e), c.audit(store.AboutMerchant(store.PersonErased, m, string(e.ID))))
	})
	return e, err
}

// UpdateErasures replaces erasures by change(erasure), all in one transaction. suppressed are further keys of each, if it
// suppresses.
func (d *Data) UpdateErasures(ctx context.Context, ids []store.ErasureID, update func(e *store.Erasure) (suppressed []store.IdentityKey)) error {
	return d.update(ctx, func(c *change) error {
		for _, id := range ids {
			e, err := find(d.state, d.state.erasures, id, inErasures, "erasure")
			if err != nil {
				return err
			}
			c.suppress(e, update(&e)...)
			if err := c.putErasure(e); err != nil {
				return err
			}
		}
		return nil
	})
}

// RepeatErasures has all erasures, and the deletions that are not done, done again, because older events may be back.
func (d *Data) RepeatErasures(ctx context.Context) error {
	d.mu.RLock()
	ids := slices.Collect(maps.Keys(d.state.erasures))
	deletions := slices.Collect(maps.Values(d.state.removals))
	d.mu.RUnlock()
	deletions = slices.DeleteFunc(deletions, func(r store.Removal) bool { return r.State != store.ErasurePurging })
	for i := range deletions {
		deletions[i].State = store.ErasureRemoving
	}
	if len(deletions) > 0 {
		if err := d.SaveRemovals(ctx, deletions); err != nil {
			return err
		}
	}
	for part := range slices.Chunk(ids, 1000) {
		if err := d.UpdateErasures(ctx, part, func(e *store.Erasure) []store.IdentityKey {
			if e.State != store.ErasurePending {
				e.State = store.ErasureRemoving
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// byAge compares erasures: the oldest is the first.
func (s *state) byAge(a, b store.ErasureID) int {
	return cmp.Or(s.erasures[a].At.Compare(s.erasures[b].At), cmp.Compare(b, a))
}

// open are the erasures that are not done.
func (s *state) open() iter.Seq[store.Erasure] {
	return func(yield func(store.Erasure) bool) {
		for id := range s.unfinished {
			if !yield(s.erasures[id]) {
				return
			}
		}
	}
}

func (c *change) putErasure(e store.Erasure) error {
	return put(c, inErasures, string(e.ID), e, func(s *state) { s.setErasure(e) })
}

func (s *state) setErasure(e store.Erasure) {
	_, known := s.erasures[e.ID]
	s.erasures[e.ID] = e
	if !known {
		of := s.erasuresOf[e.Merchant]
		i, _ := slices.BinarySearchFunc(of, e.ID, s.byAge)
		s.erasuresOf[e.Merchant] = slices.Insert(of, i, e.ID)
	}
	if e.State == store.ErasureDone {
		delete(s.unfinished, e.ID)
	} else {
		s.unfinished[e.ID] = true
	}
}

// suppress notes that events with these keys are refused, if the erasure suppresses.
func (c *change) suppress(e store.Erasure, keys ...store.IdentityKey) {
	if !e.Suppress {
		return
	}
	for _, k := range keys {
		c.writes = append(c.writes, write{inSuppressed, suppressedKey(e.Merchant, k), []byte(e.ID)})
		c.publish = append(c.publish, func() {
			c.d.state.setSuppressed(e.Merchant, k, e.ID)
			c.d.suppressing.Store(true)
		})
	}
}

func (s *state) setSuppressed(m store.MerchantID, k store.IdentityKey, by store.ErasureID) {
	if s.suppressed[m] == nil {
		s.suppressed[m] = map[store.IdentityKey]store.ErasureID{}
	}
	s.suppressed[m][k] = by
}

func suppressedKey(m store.MerchantID, k store.IdentityKey) string {
	return string(m) + "/" + hex.EncodeToString(k[:])
}

// parseSuppressed reads what suppress has written.
func (s *state) parseSuppressed(key string, by store.ErasureID) error {
	m, text, _ := strings.Cut(key, "/")
	var k store.IdentityKey
	if err := k.UnmarshalText([]byte(text)); err != nil {
		return err
	}
	s.setSuppressed(store.MerchantID(m), k, by)
	return nil
}

// Refuses returns store.Suppressed when events of this person are refused, store.Removed when the merchant was deleted, and else 0. It is
// called for each event.
func (d *Data) Refuses(m store.MerchantID, id *store.Identity, muid store.MUID) store.Outcome {
	if !d.suppressing.Load() {
		return 0
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if _, removed := d.state.removals[m]; removed {
		return store.Removed
	}
	of := d.state.suppressed[m]
	if len(of) == 0 {
		return 0
	}
	for _, k := range id.Keys() {
		if _, is := of[k]; is {
			return store.Suppressed
		}
	}
	if _, is := of[store.MUIDKey(muid)]; is {
		return store.Suppressed
	}
	return 0
}

// Erasure implements store.Persons.
func (d *Data) Erasure(ctx context.Context, id store.ErasureID) (e store.Erasure, err error) {
	err = d.view(ctx, func(s *state) error {
		e, err = find(s, s.erasures, id, inErasures, "erasure")
		return err
	})
	return e, err
}

// Erasures implements store.Persons.
func (d *Data) Erasures(ctx context.Context, m store.MerchantID, offset, limit int) (page []store.Erasure, total int, err error) {
	err = d.view(ctx, func(s *state) error {
		of := s.erasuresOf[m] // the newest is the last
		total = len(of)
		for i := total - 1 - offset; i >= 0 && len(page) < limit; i-- {
			page = append(page, s.erasures[of[i]])
		}
		return nil
	})
	return page, total, err
}

// Unfinished returns the erasures that are not done, the oldest first.
func (d *Data) Unfinished() (all []store.Erasure) {
	d.mu.RLock()
	defer d.mu.RUnlock()
	all = slices.Collect(d.state.open())
	slices.SortFunc(all, func(a, b store.Erasure) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.ID, b.ID)) })
	return all
}
