package journal

import (
	"context"
	"encoding/binary"
	"time"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
)

// Refill collects links and event_ids of a merchant that the journal does not have, and writes them.
type Refill struct {
	j       *Journal
	m       store.MerchantKey
	missing map[string]missingKey
}

type missingKey struct {
	value     []byte
	expiresAt uint64 // s since 1970; 0: never
}

// NewRefill returns an empty one.
func (j *Journal) NewRefill(m store.MerchantKey) *Refill {
	return &Refill{j: j, m: m, missing: map[string]missingKey{}}
}

// Link adds a claimed link. Of those of one identifier, the last one counts.
func (r *Refill) Link(k store.IdentityKey, muid []byte) error {
	return r.add(appendLinkKey(nil, r.m, k), missingKey{value: link{muid: muid}.append(nil)})
}

// Remember adds an event_id that was received at a time.
func (r *Refill) Remember(e Remembered, at time.Time) error {
	return r.add(appendDedupeKey(nil, r.m, e.Name, e.EventID),
		missingKey{value: binary.BigEndian.AppendUint64(nil, uint64(at.UnixMicro())), expiresAt: uint64(at.Add(dedupeTTL).Unix())})
}

func (r *Refill) add(key []byte, v missingKey) error {
	if _, known := r.missing[string(key)]; !known {
		if _, found, err := orLost(r.j.keys.get)(key); found || err != nil {
			return err
		}
	}
	r.missing[string(key)] = v
	return nil
}

// Write writes what is still missing, and returns how much it was. A muid may have links, but have lost the key that says so.
func (r *Refill) Write() (written int, err error) {
	lost := r.j.keys.lost.Load()
	if err := r.j.keys.eachLink(context.Background(), r.m[:], 0, func(m store.MerchantKey, l store.Link, _ bool) error {
		linked := appendLinkedKey(nil, m, store.MUIDKey(l.MUID))
		if !isLost(lost, linked) {
			return nil
		}
		return r.add(linked, missingKey{value: []byte{1}})
	}); err != nil {
		return 0, err
	}
	var keys []string
	for key := range r.missing {
		keys = append(keys, key)
	}
	return len(keys), changeEach(r.j, keys, func(t *transaction, key string) error {
		if _, found, err := orLost(t.keys.getWritten)([]byte(key)); found || err != nil {
			return err
		}
		v := r.missing[key]
		t.set([]byte(key), v.value, v.expiresAt)
		if key[0] == prefixLink {
			l, err := parseLink(v.value)
			if err != nil {
				return err
			}
			t.set(appendLinkedKey(nil, r.m, store.MUIDKey(l.muid)), []byte{1}, 0)
		}
		return nil
	})
}

// Refilled ends the refusal of look-ups of lost keys: what events have of them is written.
func (j *Journal) Refilled() {
	defer j.holdCommits()()
	j.keys.lost.Store(nil)
}

// Lost returns the ranges of the lost keys that are not written again yet.
func (j *Journal) Lost() []badgerdb.Range {
	if lost := j.keys.lost.Load(); lost != nil {
		return *lost
	}
	return nil
}
