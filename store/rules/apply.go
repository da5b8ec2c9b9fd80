package rules

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"mtagd/store"
)

// Apply puts records that were stored into memory and into the directory. None of them is there twice. Only the driver calls
// it, with one change after the other, or with the last version of each record that several changes have written.
func (d *Data) Apply(records []Record) error {
	type decoded struct {
		kind int
		key  string
		v    any // nil: deleted
	}
	all := make([]decoded, len(records))
	for i, r := range records {
		at, err := placeOf(r.Kind)
		if err != nil {
			return err
		}
		all[i] = decoded{at, r.Key, nil}
		if r.Value == nil {
			continue
		}
		if all[i].v, err = kinds[at].decode(r.Key, r.Value); err != nil {
			return fmt.Errorf("record %s %q: %w", r.Kind, r.Key, err)
		}
	}
	order := func(r decoded) int { // of a kind, what is deleted makes room first
		if r.v == nil {
			return 2 * r.kind
		}
		return 2*r.kind + 1
	}
	slices.SortStableFunc(all, func(a, b decoded) int { return cmp.Compare(order(a), order(b)) })
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range all {
		if r.v == nil {
			kinds[r.kind].remove(d, r.key)
		} else {
			kinds[r.kind].set(d, r.key, r.v)
		}
	}
	if len(d.removed) > 0 {
		d.dir.RemoveMerchants(d.removed...) // together: the shared host may have most tags
		d.removed = nil
	}
	return nil
}

// fillDirectory puts what was loaded into the directory.
func (d *Data) fillDirectory() {
	s := d.state
	for _, p := range s.partners {
		d.dir.SetPartner(p)
	}
	for _, k := range s.keys {
		d.dir.SetKey(k)
		if at, used := s.uses[k.ID]; used {
			d.dir.SetLastUse(k.ID, at)
		}
	}
	for _, o := range s.sessions {
		if !o.IsLink {
			d.dir.SetSession(o)
		}
	}
	for _, m := range s.merchants {
		d.dir.SetMerchant(m.Merchant)
	}
	tags := make([]store.Tag, 0, len(s.tags))
	for _, t := range s.tags {
		tags = append(tags, s.complete(t))
	}
	store.Sort(tags, func(a, b store.Tag) int { return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID)) })
	for _, t := range tags {
		d.dir.SetTag(t)
	}
}

func (d *Data) setPartner(id store.PartnerID, p store.Partner) {
	s := d.state
	s.endTracking(s.partners[id])
	s.partners[id] = p
	if p.TrackingDomain != "" {
		s.tracking[p.TrackingDomain] = id
	}
	d.dir.SetPartner(p)
}

// endTracking frees the tracking domain of a partner, unless another one has it by now.
func (s *State) endTracking(p store.Partner) {
	if s.tracking[p.TrackingDomain] == p.ID {
		delete(s.tracking, p.TrackingDomain)
	}
}

// removePartner removes a partner, before what belongs to it.
func (d *Data) removePartner(id store.PartnerID) {
	s := d.state
	s.endTracking(s.partners[id])
	delete(s.partners, id)
	delete(s.keysOf, id)
	delete(s.merchantsOf, id)
	delete(s.repliesOf, id)
	delete(s.counts, id)
	d.dir.RemovePartner(id)
}

func (d *Data) setKey(id store.KeyID, k store.Key) {
	s := d.state
	if _, known := s.keys[id]; !known {
		s.keysOf[k.Partner] = append(s.keysOf[k.Partner], id)
	}
	s.keys[id] = k
	d.dir.SetKey(k)
}

func (d *Data) removeKey(id store.KeyID) {
	s := d.state
	if of := s.keys[id].Partner; s.keysOf[of] != nil {
		s.keysOf[of] = without(s.keysOf[of], id)
	}
	delete(s.keys, id)
	d.dir.RemoveKey(id)
}

// setUse notes when a key was used. It may have been used here since.
func (d *Data) setUse(id store.KeyID, at time.Time) {
	d.state.uses[id] = at
	if at.After(d.dir.LastUse(id)) {
		d.dir.SetLastUse(id, at)
	}
}

func (d *Data) setMerchant(id store.MerchantID, m merchant) {
	s := d.state
	_, known := s.merchants[id]
	s.merchants[id] = m
	if !known {
		s.merchantsOf[m.Partner] = insert(s.merchantsOf[m.Partner], id, s.byOrdinal)
	}
	d.dir.SetMerchant(m.Merchant)
}

// removeMerchant removes a merchant, before its tags.
func (d *Data) removeMerchant(id store.MerchantID) {
	s := d.state
	m := s.merchants[id].Merchant
	if m.ID == "" {
		return
	}
	for _, t := range s.tagsOf[id] {
		m.Tags = append(m.Tags, store.Tag{ID: t})
	}
	d.removed = append(d.removed, m)
	if s.merchantsOf[m.Partner] != nil {
		s.merchantsOf[m.Partner] = without(s.merchantsOf[m.Partner], id)
	}
	delete(s.tagsOf, id)
	delete(s.merchants, id)
}

func (d *Data) setTag(id store.TagID, t store.Tag) {
	s := d.state
	_, known := s.tags[id]
	s.tags[id] = t
	if !known {
		s.noteTag(t)
	}
	t = s.complete(t)
	s.countsOf(t.Partner).set(t, !known)
	d.dir.SetTag(t)
}

func (d *Data) removeTag(id store.TagID) {
	s := d.state
	t := s.tags[id]
	if s.labels[t.Label] == id {
		delete(s.labels, t.Label)
	}
	if counts := s.counts[t.Partner]; counts != nil {
		counts.remove(t)
	}
	delete(s.tags, id)
}

func (d *Data) setReply(key string, r reply) {
	s := d.state
	d.removeReply(key)
	s.replies[key] = r
	s.repliesOf[r.Partner] = insert(s.repliesOf[r.Partner], key, s.byReply)
}

func (d *Data) removeReply(key string) {
	s := d.state
	if r, known := s.replies[key]; known && s.repliesOf[r.Partner] != nil {
		s.repliesOf[r.Partner] = without(s.repliesOf[r.Partner], key)
	}
	delete(s.replies, key)
}

func (d *Data) setRemoval(id store.MerchantID, r store.Removal) {
	r.Kind = store.OfDeletion // earlier versions wrote none
	d.state.removals[id] = r
	d.suppressing.Store(true)
}

func (d *Data) setErasure(id store.ErasureID, e store.Erasure) {
	s := d.state
	_, known := s.erasures[id]
	s.erasures[id] = e
	if !known {
		s.erasuresOf[e.Merchant] = insert(s.erasuresOf[e.Merchant], id, s.byAge)
	}
	if e.State == store.ErasureDone {
		delete(s.unfinished, id)
	} else {
		s.unfinished[id] = true
	}
}

func (d *Data) setSession(id store.SessionID, s store.Session) {
	d.state.sessions[id] = s
	if !s.IsLink {
		d.dir.SetSession(s)
	}
}

func (d *Data) removeSession(id store.SessionID) {
	delete(d.state.sessions, id)
	d.dir.RemoveSession(id)
}
