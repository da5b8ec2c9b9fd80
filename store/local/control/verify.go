package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"mtagd/store"
)

// Verify reads control.db from the disk, checks it as Open does, and compares the records that must agree. It passes what is
// wrong to wrong, with the record's bucket and key, and returns the number of records.
func (d *Data) Verify(ctx context.Context, wrong func(where, problem string)) (records uint64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	r, err := d.readAgain(false)
	if err != nil {
		wrong(fileName, err.Error())
		return 0, nil
	}
	defer r.close()
	if r.isUnsound() && r.isComplete() {
		wrong(fileName, "is damaged, but all records are there: the next start rebuilds it")
	}
	for _, p := range r.wrong {
		wrong(p.where(), p.text)
	}
	if len(r.wrong) == 0 {
		r.state.derive()
		r.state.compare(func(bucket, key, text string) {
			p := problem{bucket: bucket, key: key}
			wrong(p.where(), text)
		})
	}
	return r.records, nil
}

// readAgain reads the file as of the last change.
func (d *Data) readAgain(keep bool) (_ *reading, err error) {
	if d.db == nil {
		return read(d.file, 0, keep)
	}
	snapshot, err := d.Snapshot(func() {}) // so that its pages are not used again
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, snapshot.Close()) }()
	f, err := os.Open(d.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := read(f, uint64(snapshot.tx.ID()), keep)
	if err == nil && len(r.wrong) == 0 {
		return r, nil
	}
	if err == nil {
		err = r.close()
	}
	// The meta page is overwritten by the second change after the snapshot. So read again while nothing changes.
	again, nextErr := d.Snapshot(func() { r, err = read(f, 0, keep) })
	if nextErr != nil {
		return nil, nextErr
	}
	return r, errors.Join(err, again.Close())
}

// compare finds records that do not agree with each other. The seals are right, so this would be a fault of the program.
func (s *state) compare(wrong func(bucket, key, text string)) {
	for id, k := range s.keys {
		if _, ok := s.partners[k.Partner]; !ok {
			wrong(inKeys, string(id), fmt.Sprintf("is of partner %s, which does not exist", k.Partner))
		}
	}
	for id, m := range s.merchants {
		if _, ok := s.partners[m.Partner]; !ok {
			wrong(inMerchants, string(id), fmt.Sprintf("is of partner %s, which does not exist", m.Partner))
		}
		if _, removed := s.removals[id]; removed {
			wrong(inMerchants, string(id), "was deleted")
		}
	}
	for id, t := range s.tags {
		if m, ok := s.merchants[t.Merchant]; !ok || m.Partner != t.Partner {
			wrong(inTags, string(id), fmt.Sprintf("is of merchant %s of partner %s, which does not exist", t.Merchant, t.Partner))
		}
		if t.Verified && t.Type == store.ServerSide && s.domains[t.Domain] != id {
			wrong(inTags, string(id), fmt.Sprintf("is verified, but has no claim to %s", t.Domain))
		}
		if t.Label != "" && s.labels[t.Label] != id {
			wrong(inTags, string(id), fmt.Sprintf("has the label %s of another tag", t.Label))
		}
	}
	for m, tags := range s.tagsOf {
		types := map[store.TagType]bool{}
		for _, id := range tags {
			if t := s.tags[id].Type; types[t] {
				wrong(inMerchants, string(m), fmt.Sprintf("has two tags of type %s", t))
			}
			types[s.tags[id].Type] = true
		}
	}
	for _, domain := range slices.Sorted(maps.Keys(s.domains)) {
		if t, ok := s.tags[s.domains[domain]]; !ok || t.Type != store.ServerSide || t.Domain != domain {
			wrong(inDomains, domain, fmt.Sprintf("leads to tag %s, which does not exist or does not fit", s.domains[domain]))
		}
	}
	for id, p := range s.partners {
		if p.TrackingDomain != "" && s.tracking[p.TrackingDomain] != id {
			wrong(inPartners, string(id), fmt.Sprintf("has the tracking domain %s of another partner", p.TrackingDomain))
		}
	}
}
