package rules

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"mtagd/store"
)

// Loading gathers the records that a driver has read, for New.
type Loading struct{ all []decoded }

// decoded is a record with its value; nil: it is deleted.
type decoded struct {
	kind int
	key  string
	v    any
	made time.Time // for apply; zero: the record is deleted, or does not say
}

func decode(r Record) (one decoded, err error) {
	one.key = r.Key
	if one.kind, err = placeOf(r.Kind); err != nil || r.Value == nil {
		return one, err
	}
	one.v, err = kinds[one.kind].decode(r.Key, r.Value)
	switch v := one.v.(type) {
	case store.Merchant:
		one.made = v.CreatedAt
	case store.Tag:
		one.made = v.CreatedAt
	case store.Erasure:
		one.made = v.At
	case reply:
		one.made = v.At
	}
	return one, err
}

// Add adds a record. It fails for one that cannot be read.
func (l *Loading) Add(r Record) error {
	one, err := decode(r)
	if err == nil {
		l.all = append(l.all, one)
	}
	return err
}

// Apply puts records that were stored into memory and into the directory. None of them is there twice. Only the driver calls
// it, with one change after the other, or with the last version of each record that several changes have written.
func (d *Data) Apply(records []Record) error {
	var l Loading
	for _, r := range records {
		if err := l.Add(r); err != nil {
			return fmt.Errorf("record %s %q: %w", r.Kind, r.Key, err)
		}
	}
	d.apply(l.all)
	return nil
}

// apply puts records into memory, by kind. Of a kind, what is deleted makes room first; then they come as they were made, so
// that each gets to the end of the lists that it is in.
func (d *Data) apply(all []decoded) {
	deleted := func(r decoded) int {
		if r.v == nil {
			return 0
		}
		return 1
	}
	slices.SortFunc(all, func(a, b decoded) int {
		return cmp.Or(a.kind-b.kind, deleted(a)-deleted(b), a.made.Compare(b.made), cmp.Compare(a.key, b.key))
	})
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
	d.dir.RemovePartner(id)
}

func (d *Data) setKey(id store.KeyID, k store.Key) {
	s := d.state
	if _, known := s.keys[id]; !known {
		insert(s.keysOf, k.Partner, id, cmp.Compare[store.KeyID])
	}
	s.keys[id] = k
	d.dir.SetKey(k)
}

func (d *Data) removeKey(id store.KeyID) {
	s := d.state
	drop(s.keysOf, s.keys[id].Partner, id)
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

func (d *Data) setMerchant(id store.MerchantID, m store.Merchant) {
	s := d.state
	_, known := s.merchants[id]
	s.merchants[id] = m
	if !known {
		insert(s.merchantsOf, m.Partner, id, s.byOrdinal)
	}
	d.dir.SetMerchant(m)
}

// removeMerchant removes a merchant, before its tags.
func (d *Data) removeMerchant(id store.MerchantID) {
	s := d.state
	m := s.merchants[id]
	if m.ID == "" {
		return
	}
	for _, t := range s.tagsOf[id] {
		m.Tags = append(m.Tags, store.Tag{ID: t})
	}
	d.removed = append(d.removed, m)
	drop(s.merchantsOf, m.Partner, id)
	delete(s.tagsOf, id)
	delete(s.merchants, id)
}

func (d *Data) setTag(id store.TagID, t store.Tag) {
	s := d.state
	_, known := s.tags[id]
	s.tags[id] = t
	t = s.complete(t)
	labels := 0
	if !known {
		insert(s.tagsOf, t.Merchant, t.ID, cmp.Compare[store.TagID])
		if t.Label != "" {
			s.labels[t.Label] = id
			labels = 1
		}
	}
	s.count(t, labels, t.Type == store.ServerSide && !t.Verified && !t.ClaimLost)
	d.dir.SetTag(t)
}

func (d *Data) removeTag(id store.TagID) {
	s := d.state
	t := s.tags[id]
	if s.labels[t.Label] == id {
		delete(s.labels, t.Label)
	}
	delete(s.tags, id)
	if t.Label != "" { // without a label there is nothing to count
		s.count(t, -1, false)
	}
}

func (d *Data) setReply(key string, r reply) {
	s := d.state
	d.removeReply(key)
	s.replies[key] = r
	insert(s.repliesOf, r.Partner, key, s.byReply)
}

func (d *Data) removeReply(key string) {
	s := d.state
	drop(s.repliesOf, s.replies[key].Partner, key)
	delete(s.replies, key)
}

func (d *Data) setRemoval(id store.MerchantID, r store.Removal) {
	d.state.removals[id] = r
	d.suppressing.Store(true)
}

func (d *Data) setErasure(id store.ErasureID, e store.Erasure) {
	s := d.state
	_, known := s.erasures[id]
	s.erasures[id] = e
	if !known {
		insert(s.erasuresOf, e.Merchant, id, s.byAge)
	}
	if e.State == store.ErasureDone {
		delete(s.unfinished, id)
	} else {
		s.unfinished[id] = e
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
