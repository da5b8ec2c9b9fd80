package control

import (
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"

	"mtagd/store"
	"mtagd/store/local/boltfile"
)

// Salvage writes the records that can be read, and that fit together, into a new control.db in the directory to. It passes what
// is left out to lost.
func (d *Data) Salvage(to string, lost func(where, problem string)) error {
	r, err := d.readAgain()
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
	r.dateClaims(d.now().UTC())
	db, err := boltfile.OpenChecked(filepath.Join(to, fileName), func(*os.File) error { return os.ErrExist })
	if err != nil {
		return err
	}
	return errors.Join(fill(db, r, slog.New(slog.DiscardHandler)), db.Close())
}

// mend drops the records whose owner is lost, and claims whose tag is. A verified tag whose claim is lost gets it again, as only
// one tag can have been verified for a domain.
func (s *state) mend(lost func(bucket, key, text string)) {
	const orphan = "is left out: its owner is lost"
	drop := func(bucket, key string, fits bool) bool {
		if !fits {
			lost(bucket, key, orphan)
		}
		return !fits
	}
	maps.DeleteFunc(s.keys, func(id store.KeyID, k store.Key) bool {
		_, ok := s.partners[k.Partner]
		return drop(inKeys, string(id), ok)
	})
	maps.DeleteFunc(s.merchants, func(id store.MerchantID, m merchant) bool {
		_, ok := s.partners[m.Partner]
		return drop(inMerchants, string(id), ok)
	})
	maps.DeleteFunc(s.tags, func(id store.TagID, t store.Tag) bool {
		m, ok := s.merchants[t.Merchant]
		return drop(inTags, string(id), ok && m.Partner == t.Partner)
	})
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
