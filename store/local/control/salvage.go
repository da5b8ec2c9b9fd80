package control

import (
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"mtagd/store"
)

// Salvage writes the records that can be read, and that fit together, into a new control.db in the directory to. It passes what
// is left out to lost.
func (d *Data) Salvage(to string, lost func(where, problem string)) error {
	r, err := d.readAgain(true)
	if err != nil {
		return err
	}
	defer r.close()
	for _, p := range r.wrong {
		lost(p.where(), p.text)
	}
	r.state.mend(func(bucket, key, text string) {
		p := problem{bucket: bucket, key: key}
		lost(p.where(), text)
	})
	records, err := r.state.writes()
	if err != nil {
		return err
	}
	damaged := map[store.AuditID]write{}
	for _, p := range r.wrong {
		if p.bucket != inLog || len(p.key) != auditKeySize {
			continue
		}
		id, at := auditID(p.key), auditTime(p.key)
		if damaged[id], err = newWrite(inLog, p.key, store.AuditEntry{ID: id, At: at, Action: store.EntryDamaged}); err != nil {
			return err
		}
	}
	first, last := store.AuditID(0), store.AuditID(0)
	for _, w := range r.raw {
		_, hasKey := r.state.keys[store.KeyID(w.key)]
		if w.bucket == inLog && len(w.key) == auditKeySize {
			id := auditID(w.key)
			delete(damaged, id)
			if first == 0 || id < first {
				first = id
			}
			last = max(last, id)
		} else if w.bucket != inUses || !hasKey {
			continue
		}
		records = append(records, w)
	}
	for id, w := range damaged {
		if id > first && id < last { // else its key may be damaged too
			records = append(records, w)
		}
	}
	return writeNew(filepath.Join(to, fileName), records)
}

// writes returns the records of all control data but the audit log. Sessions are left out: after a repair everybody signs in
// again.
func (s *state) writes() (all []write, err error) {
	add := func(w write, wErr error) {
		all = append(all, w)
		if err == nil {
			err = wErr
		}
	}
	for id, p := range s.partners {
		add(newWrite(inPartners, string(id), p))
	}
	for id, k := range s.keys {
		add(newWrite(inKeys, string(id), k))
	}
	for id, m := range s.merchants {
		add(newWrite(inMerchants, string(id), m))
	}
	for id, t := range s.tags {
		add(newWrite(inTags, string(id), t))
	}
	for _, domain := range slices.Sorted(maps.Keys(s.domains)) {
		all = append(all, write{inDomains, domain, []byte(s.domains[domain])})
	}
	for key, r := range s.replies {
		add(newWrite(inReplies, key, r))
	}
	for id, r := range s.removals {
		add(newWrite(inRemovals, string(id), r))
	}
	for id, e := range s.erasures {
		add(newWrite(inErasures, string(id), e))
	}
	for m, of := range s.suppressed {
		for k, by := range of {
			all = append(all, write{inSuppressed, suppressedKey(m, k), []byte(by)})
		}
	}
	for key, content := range s.documents {
		all = append(all, write{inDocuments, key, content})
	}
	if s.retention != 0 {
		all = append(all, write{inMeta, keyRetention, []byte(strconv.Itoa(int(s.retention)))})
	}
	if s.id != "" {
		all = append(all, write{inMeta, keyID, []byte(s.id)})
	}
	return all, err
}

// mend makes partners and merchants anew that are lost, as what belongs to them is not. They are suspended, because nobody knows
// whether they were. It drops claims whose tag is lost. A verified tag whose claim is lost gets it again, as only one tag can have
// been verified for a domain.
func (s *state) mend(lost func(bucket, key, text string)) {
	const (
		name   = "(recovered)"
		anew   = "is lost, and is made anew for what belongs to it, without its name and settings. It is suspended: look at it, and resume it"
		orphan = "is left out: its owner is lost"
	)
	drop := func(bucket, key string, fits bool) bool {
		if !fits {
			lost(bucket, key, orphan)
		}
		return !fits
	}
	maps.DeleteFunc(s.tags, func(id store.TagID, t store.Tag) bool {
		m, ok := s.merchants[t.Merchant]
		if _, removed := s.removals[t.Merchant]; !ok && !removed {
			m.Merchant = store.Merchant{ID: t.Merchant, Partner: t.Partner, Name: name, CreatedAt: t.CreatedAt, Suspended: true,
				Retention: store.Forever, IdentityRequiresSecret: true}
			s.merchants[m.ID] = m
			lost(inMerchants, string(m.ID), anew)
		}
		return drop(inTags, string(id), m.Partner == t.Partner)
	})
	owned := func(id store.PartnerID, created time.Time) {
		if _, ok := s.partners[id]; !ok {
			s.partners[id] = store.Partner{ID: id, Name: name, CreatedAt: created, Suspended: true}
			lost(inPartners, string(id), anew)
		}
	}
	for _, k := range s.keys {
		owned(k.Partner, k.CreatedAt)
	}
	for _, m := range s.merchants {
		owned(m.Partner, m.CreatedAt)
	}
	maps.DeleteFunc(s.domains, func(domain string, id store.TagID) bool {
		t, ok := s.tags[id]
		return drop(inDomains, domain, ok && t.Type == store.ServerSide && t.Domain == domain)
	})
	for id, t := range s.tags {
		if t.Type != store.ServerSide || !t.Verified || s.domains[t.Domain] == id {
			continue
		}
		if s.domains[t.Domain] == "" {
			s.domains[t.Domain] = id
		} else {
			s.tags[id] = t.LoseClaim()
		}
	}
}
