package rules

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"mtagd/store"
)

// Compare finds records that do not agree with each other. Each is as it was written, so this would be a fault of
// the program.
func (d *Data) Compare(wrong func(bucket, key, text string)) {
	s := d.state
	for id, k := range s.keys {
		if _, ok := s.partners[k.Partner]; !ok {
			wrong(Keys, string(id), fmt.Sprintf("is of partner %s, which does not exist", k.Partner))
		}
	}
	for id, m := range s.merchants {
		if _, ok := s.partners[m.Partner]; !ok {
			wrong(Merchants, string(id), fmt.Sprintf("is of partner %s, which does not exist", m.Partner))
		}
		if _, removed := s.removals[id]; removed {
			wrong(Merchants, string(id), "was deleted")
		}
	}
	for id, t := range s.tags {
		if m, ok := s.merchants[t.Merchant]; !ok || m.Partner != t.Partner {
			wrong(Tags, string(id), fmt.Sprintf("is of merchant %s of partner %s, which does not exist", t.Merchant, t.Partner))
		}
		if t.Verified && t.Type == store.ServerSide && s.domains[t.Domain] != id {
			wrong(Tags, string(id), fmt.Sprintf("is verified, but has no claim to %s", t.Domain))
		}
		if t.Label != "" && s.labels[t.Label] != id {
			wrong(Tags, string(id), fmt.Sprintf("has the label %s of another tag", t.Label))
		}
	}
	for m, tags := range s.tagsOf {
		types := map[store.TagType]bool{}
		for _, id := range tags {
			if t := s.tags[id].Type; types[t] {
				wrong(Merchants, string(m), fmt.Sprintf("has two tags of type %s", t))
			}
			types[s.tags[id].Type] = true
		}
	}
	for _, domain := range slices.Sorted(maps.Keys(s.domains)) {
		if t, ok := s.tags[s.domains[domain]]; !ok || t.Type != store.ServerSide || t.Domain != domain {
			wrong(Domains, domain, fmt.Sprintf("leads to tag %s, which does not exist or does not fit", s.domains[domain]))
		}
	}
	for id, p := range s.partners {
		if p.TrackingDomain != "" && s.tracking[p.TrackingDomain] != id {
			wrong(Partners, string(id), fmt.Sprintf("has the tracking domain %s of another partner", p.TrackingDomain))
		}
	}
}

// Repair returns the changes after which the records that were read from damaged files fit
// together. It creates lost partners and merchants again if something of theirs was read. They
// are suspended, because nobody knows whether they were. It drops claims whose tag is lost. A
// verified tag whose claim is lost gets it again, as only one tag can have been verified for a
// domain. Afterwards, the data must not be used.
func (d *Data) Repair(lost func(bucket, key, text string)) ([]Record, error) {
	s, c := d.state, &change{d: d, at: map[[2]string]int{}}
	const (
		name   = "(recovered)"
		anew   = "is lost, but something of it was read: it is created again, without its name and settings. It is suspended: look at it, and resume it"
		orphan = "is left out: its owner is lost"
	)
	leaveOut := func(bucket, key string) {
		c.delete(bucket, key)
		lost(bucket, key, orphan)
	}
	for id, t := range s.tags {
		m, ok := s.merchants[t.Merchant]
		if _, removed := s.removals[t.Merchant]; !ok && !removed {
			m = store.Merchant{ID: t.Merchant, Partner: t.Partner, Name: name, CreatedAt: t.CreatedAt, Suspended: true,
				Retention: store.Forever, IdentityRequiresSecret: true}
			s.merchants[m.ID] = m
			c.put(Merchants, string(m.ID), m)
			lost(Merchants, string(m.ID), anew)
		}
		if m.Partner != t.Partner {
			delete(s.tags, id)
			leaveOut(Tags, string(id))
		}
	}
	owned := func(id store.PartnerID, created time.Time) {
		if _, ok := s.partners[id]; !ok {
			s.partners[id] = store.Partner{ID: id, Name: name, CreatedAt: created, Suspended: true}
			c.put(Partners, string(id), s.partners[id])
			lost(Partners, string(id), anew)
		}
	}
	for _, k := range s.keys {
		owned(k.Partner, k.CreatedAt)
	}
	for _, m := range s.merchants {
		owned(m.Partner, m.CreatedAt)
	}
	for key := range s.destinations {
		if _, ok := s.merchants[destination(key, nil).Merchant]; !ok {
			leaveOut(Destinations, key)
		}
	}
	for domain, id := range s.domains {
		if t, ok := s.tags[id]; !ok || t.Type != store.ServerSide || t.Domain != domain {
			delete(s.domains, domain)
			leaveOut(Domains, domain)
		}
	}
	for id, t := range s.tags {
		switch {
		case t.Type != store.ServerSide || !t.Verified || s.domains[t.Domain] == id:
		case s.domains[t.Domain] == "":
			s.domains[t.Domain] = id
			c.write(Domains, t.Domain, []byte(id))
		default:
			c.put(Tags, string(id), t.LoseClaim())
		}
	}
	return c.Records, c.err
}
