package rules

import (
	"cmp"
	"context"
	"encoding/hex"
	"maps"
	"slices"
	"strings"
	"time"

	"mtagd/store"
)

// addErasure notes an erasure, or returns the one that it repeats (store.Erasure.Admit). With suppress, the person's events
// are refused from now on.
func (d *Data) addErasure(ctx context.Context, id store.MerchantID, who store.Person, suppress bool) (e store.Erasure, err error) {
	err = d.update(ctx, func(c *change) error {
		m, err := d.state.merchant(id)
		if err != nil {
			return err
		}
		e = store.Erasure{ID: store.NewErasureID(), Merchant: id, Partner: m.Partner, At: c.now, State: store.ErasurePending, Person: who, Suppress: suppress}
		same, err := e.Admit(maps.Values(d.state.unfinished))
		if err != nil {
			return err
		}
		if same.ID != "" {
			if e = same; e.Suppress || !suppress {
				return nil
			}
			e.Suppress = true
		}
		c.removing = true
		c.suppress(e, who.MUIDs...)
		c.suppress(e, who.Identifiers...)
		c.put(Erasures, string(e.ID), e)
		c.audit(store.AboutMerchant(store.PersonErased, m, string(e.ID)))
		return nil
	})
	return e, err
}

// UpdateErasures replaces erasures by change(erasure), all in one transaction. suppressed are further keys of each, if it
// suppresses.
func (d *Data) UpdateErasures(ctx context.Context, ids []store.ErasureID, update func(e *store.Erasure) (suppressed []store.IdentityKey)) error {
	return d.update(ctx, func(c *change) error {
		for _, id := range ids {
			e, err := find(d.state.erasures, id, "erasure")
			if err != nil {
				return err
			}
			c.suppress(e, update(&e)...)
			c.put(Erasures, string(id), e)
		}
		return nil
	})
}

// RepeatErasures has all erasures, and the deletions that are not done, done again, because older events may be back.
func (d *Data) RepeatErasures(ctx context.Context) error {
	d.mu.RLock()
	ids := slices.Collect(maps.Keys(d.state.erasures))
	var deletions []store.Removal
	for _, r := range d.state.removals {
		if r.State == store.ErasurePurging {
			r.State = store.ErasureRemoving
			deletions = append(deletions, r)
		}
	}
	d.mu.RUnlock()
	if err := d.SaveRemovals(ctx, deletions); err != nil {
		return err
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
func (s *State) byAge(a, b store.ErasureID) int {
	return cmp.Or(s.erasures[a].At.Compare(s.erasures[b].At), cmp.Compare(b, a))
}

// suppress notes that events with these keys are refused, if the erasure suppresses.
func (c *change) suppress(e store.Erasure, keys ...store.IdentityKey) {
	if !e.Suppress {
		return
	}
	for _, k := range keys {
		c.write(Suppressed, suppressedKey(e.Merchant, k), []byte(e.ID))
	}
}

func suppressedKey(m store.MerchantID, k store.IdentityKey) string {
	return string(m) + "/" + hex.EncodeToString(k[:])
}

// suppressedPerson is what the record of a key says.
type suppressedPerson struct {
	merchant store.MerchantID
	key      store.IdentityKey
	by       store.ErasureID
}

func decodeSuppressed(key string, value []byte) (p suppressedPerson, err error) {
	m, text, _ := strings.Cut(key, "/")
	p.merchant, p.by = store.MerchantID(m), store.ErasureID(value)
	err = p.key.UnmarshalText([]byte(text))
	return p, err
}

func (d *Data) setSuppressed(_ string, p suppressedPerson) {
	s := d.state
	if s.suppressed[p.merchant] == nil {
		s.suppressed[p.merchant] = map[store.IdentityKey]store.ErasureID{}
	}
	s.suppressed[p.merchant][p.key] = p.by
	d.suppressing.Store(true)
}

func (d *Data) removeSuppressed(key string) {
	p, err := decodeSuppressed(key, nil)
	if err != nil {
		return // nothing has it
	}
	if delete(d.state.suppressed[p.merchant], p.key); len(d.state.suppressed[p.merchant]) == 0 {
		delete(d.state.suppressed, p.merchant)
	}
}

// Refuses returns store.Suppressed when events of this person are refused, store.Removed when the merchant was deleted, and
// else 0. It is called for each event.
func (d *Data) Refuses(m store.MerchantID, id *store.Identity, muid store.MUID) store.Outcome {
	if !d.suppressing.Load() {
		return 0
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.state.isRemoved(m) {
		return store.Removed
	}
	if IsSuppressed(d.state.suppressed[m], id, muid) {
		return store.Suppressed
	}
	return 0
}

// Erasure implements store.Persons.
func (d *Data) Erasure(ctx context.Context, id store.ErasureID) (store.Erasure, error) {
	return viewed(ctx, d, func(s *State, _ time.Time) (store.Erasure, error) {
		return find(s.erasures, id, "erasure")
	})
}

// Erasures implements store.Persons.
func (d *Data) Erasures(ctx context.Context, m store.MerchantID, offset, limit int) (page []store.Erasure, total int, err error) {
	err = d.view(ctx, func(s *State, _ time.Time) error {
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
	all = slices.Collect(maps.Values(d.state.unfinished))
	store.Sort(all, func(a, b store.Erasure) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.ID, b.ID)) })
	return all
}

// Tasks implements removal.Engine, as do UpdateErasures and SaveRemovals.
func (d *Data) Tasks(ctx context.Context) ([]store.Erasure, []store.Removal, error) {
	removals, err := d.Removals(ctx)
	return d.Unfinished(), removals, err
}
