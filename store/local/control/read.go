package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
)

// reading is what is read of a control.db, all of it, before anything is served.
type reading struct {
	scan   *boltfile.Scan
	format string // "" for a file that nothing was written to
	state  *state
	found  sums   // of the records that are there
	wanted sums   // as stored with the last change; nil: unknown
	wrote  uint64 // the transaction of that change; 0: unknown
	uses   map[store.KeyID]time.Time
	orders map[store.MerchantID]uint64 // of format "1"

	records uint64
	wrong   []problem
}

// problem is something that is wrong with a file.
type problem struct {
	bucket, key string // both may be empty
	text        string
	fatal       bool // which records it concerns is not known
}

func (p problem) where() string {
	if p.bucket == "" {
		return fileName
	}
	return fmt.Sprintf("%s: %s %q", fileName, p.bucket, p.key)
}

func newReading() *reading {
	return &reading{state: newState(), found: sums{}, uses: map[store.KeyID]time.Time{}, orders: map[store.MerchantID]uint64{}}
}

// read reads a file as of a transaction; 0 for the last one. It returns an error only if nothing can be read: what is wrong
// otherwise is in reading.wrong. The caller closes reading.scan.
func read(f *os.File, txid uint64) (*reading, error) {
	r := newReading()
	format, err := peek(f, txid)
	if err != nil {
		return nil, err
	}
	opt := boltfile.ScanOptions{Txid: txid}
	if format != format1 {
		opt.Sound, opt.Bucket = isSound, isKnown
	}
	if r.scan, err = boltfile.OpenScan(f, opt); err != nil {
		return nil, err
	}
	if err := r.scan.Check(); err == nil {
		err = r.scan.Records(r.record)
		if err != nil {
			return nil, errors.Join(err, r.close())
		}
	} else {
		r.report(problem{text: err.Error(), fatal: true})
		if err := r.scan.Salvage(r.record, func(path []string, err error) {
			r.report(problem{bucket: bucketOf(path), text: err.Error(), fatal: true})
		}); err != nil {
			return nil, errors.Join(err, r.close())
		}
	}
	if format == format1 {
		r.format = format1
		r.finish1()
	}
	if r.format != "" && r.format != format1 && r.format != format2 {
		return nil, errors.Join(codec.UnknownFormat{Found: r.format, Known: format2}, r.close())
	}
	r.compareSums()
	return r, nil
}

func (r *reading) close() error {
	r.scan.Close()
	return nil
}

func (r *reading) report(p problem) { r.wrong = append(r.wrong, p) }

// fatal returns an error for what is wrong, unless it concerns single records only.
func (r *reading) fatal() error {
	var errs []error
	for _, p := range r.wrong {
		if p.fatal {
			errs = append(errs, fmt.Errorf("%s: %s", p.where(), p.text))
		}
	}
	if errs == nil {
		return nil
	}
	return fmt.Errorf("%w. Nothing was changed. Restore it from a backup, or let \"mtagd repair\" make a new directory of what can be read",
		errors.Join(errs...))
}

// peek returns the format that a file says it has. The file may be damaged.
func peek(f *os.File, txid uint64) (format string, err error) {
	s, err := boltfile.OpenScan(f, boltfile.ScanOptions{Txid: txid})
	if err != nil {
		return "", err
	}
	defer s.Close()
	done := errors.New("found")
	err = s.Salvage(func(rec boltfile.Record) error {
		if bucketOf(rec.Path) == inMeta && string(rec.Key) == keyFormat {
			format = string(rec.Value)
			return done
		}
		return nil
	}, func([]string, error) {})
	if errors.Is(err, done) {
		err = nil
	}
	return format, err
}

func bucketOf(path []string) string {
	if len(path) == 0 {
		return ""
	}
	return path[0]
}

// isSound reports whether a record of format "2" is as it was written.
func isSound(path []string, key, value []byte) bool {
	bucket := bucketOf(path)
	if isPlain(bucket, string(key)) {
		return string(value) == format2
	}
	_, _, ok := unseal(bucket, key, value)
	return ok
}

// isKnown reports whether format "2" has this bucket.
func isKnown(path []string, name []byte, sequence uint64) bool {
	return len(path) == 0 && slices.Contains(buckets, string(name)) && sequence == 0
}

// record reads a record.
func (r *reading) record(rec boltfile.Record) error {
	bucket, key := bucketOf(rec.Path), string(rec.Key)
	if isPlain(bucket, key) {
		r.format = string(rec.Value)
		return nil
	}
	if r.scan.IsSealed() {
		r.records++
		value, seal, ok := unseal(bucket, key, rec.Value)
		if !ok {
			r.damaged(bucket, key, "is damaged")
			if isSummed(bucket, key) {
				r.found.add(bucket, 0)
			}
			return nil
		}
		if isSummed(bucket, key) {
			r.found.add(bucket, seal)
		}
		rec.Value = value
	}
	if err := r.decode(bucket, key, rec); err != nil {
		r.damaged(bucket, key, err.Error())
	}
	return nil
}

// damaged takes a record out of service.
func (r *reading) damaged(bucket, key, why string) {
	r.report(problem{bucket: bucket, key: key, text: why})
	r.state.damagedIn[bucket] = key
	switch bucket {
	case inPartners, inKeys, inMerchants, inTags, inDomains, inReplies:
		r.state.damaged[key] = true
		if bucket == inTags {
			r.state.damagedTags[store.TagID(key)] = true
		}
	case inSuppressed: // the key says everything
		if err := r.state.parseSuppressed(key, ""); err != nil {
			r.report(problem{bucket: bucket, key: key, text: err.Error()})
		}
	case inErasures:
		r.state.damaged[key] = true
	case inRemovals: // the key says enough
		r.state.removals[store.MerchantID(key)] = store.Removal{Kind: store.OfDeletion, Merchant: store.MerchantID(key)}
	case inLog:
		r.noteEntry(key, nil)
	}
}

// decode reads the value of a record, which is sound as far as can be known.
func (r *reading) decode(bucket, key string, rec boltfile.Record) (err error) {
	s := r.state
	switch bucket {
	case inMeta:
		switch key {
		case keyID:
			s.id = string(rec.Value)
		case keySums:
			r.wanted, r.wrote, err = parseSums(rec.Value)
		case keyRetention:
			s.retention, err = parseRetention(rec.Value)
		}
	case inPartners:
		return decodeInto(s.partners, key, rec.Value, func(p store.Partner) store.PartnerID { return p.ID })
	case inKeys:
		return decodeInto(s.keys, key, rec.Value, func(k store.Key) store.KeyID { return k.ID })
	case inMerchants:
		return decodeInto(s.merchants, key, rec.Value, func(m merchant) store.MerchantID { return m.ID })
	case inTags:
		return decodeInto(s.tags, key, rec.Value, func(t store.Tag) store.TagID { return t.ID })
	case inDomains:
		s.domains[key] = store.TagID(rec.Value)
	case inReplies:
		return decodeInto(s.replies, key, rec.Value, func(r reply) string { return replyKey(r.Partner, r.Key) })
	case inRemovals:
		if err := decodeInto(s.removals, key, rec.Value, removedMerchant); err != nil {
			return err
		}
		of := s.removals[store.MerchantID(key)]
		of.Kind = store.OfDeletion // earlier versions wrote none
		s.removals[of.Merchant] = of
	case inExpiries:
		return decodeInto(s.expiries, key, rec.Value, removedMerchant)
	case inErasures:
		return decodeInto(s.erasures, key, rec.Value, func(e store.Erasure) store.ErasureID { return e.ID })
	case inSuppressed:
		return s.parseSuppressed(key, store.ErasureID(rec.Value))
	case inSessions:
		return decodeInto(s.sessions, key, rec.Value, func(o store.Session) store.SessionID { return o.ID })
	case inUses:
		var at time.Time
		if err := at.UnmarshalText(rec.Value); err != nil {
			return err
		}
		r.uses[store.KeyID(key)] = at
	case inLog:
		r.noteEntry(key, rec.Value)
	default:
		return r.decode1(bucket, key, rec)
	}
	return err
}

// noteEntry notes an entry of the audit log; value is nil when it is damaged.
func (r *reading) noteEntry(key string, value []byte) {
	if len(key) != auditKeySize {
		return
	}
	r.state.lastEntry = max(r.state.lastEntry, auditID(key))
	if value != nil {
		r.state.hold(holderIn(value), auditID(key))
	}
}

func removedMerchant(r store.Removal) store.MerchantID { return r.Merchant }

// decodeInto decodes a record whose key is its id.
func decodeInto[K ~string, V any](m map[K]V, key string, value []byte, id func(V) K) error {
	var v V
	if err := json.Unmarshal(value, &v); err != nil {
		return err
	}
	if string(id(v)) != key {
		return fmt.Errorf("has the id %q", id(v))
	}
	m[K(key)] = v
	return nil
}

// compareSums finds out whether records are missing. In a bucket with damaged records only their number can be compared.
func (r *reading) compareSums() {
	if r.format != format2 {
		return
	}
	unsound := map[string]bool{}
	for _, p := range r.wrong {
		if p.fatal {
			return // which records are missing is no news
		}
		unsound[p.bucket] = true
	}
	if r.wanted == nil {
		r.report(problem{bucket: inMeta, key: keySums, text: "is missing", fatal: !unsound[inMeta]})
		return
	}
	// The pages of an earlier state can all be sound, below the meta page of a later one whose own pages were not written. bbolt
	// never writes over the pages of the state before, so that state is two transactions earlier or more. One earlier is sound:
	// new buckets are made without sums.
	if r.wrote > 0 && r.wrote+1 < r.scan.Txid() {
		r.report(problem{text: fmt.Sprintf("has the records of transaction %d, but is of transaction %d", r.wrote, r.scan.Txid()), fatal: true})
	}
	for _, bucket := range buckets {
		found, wanted := r.found[bucket], r.wanted[bucket]
		if found.n != wanted.n || found.seals != wanted.seals && !unsound[bucket] {
			r.report(problem{bucket: bucket, text: fmt.Sprintf("has %d records where %d were written, or older ones", found.n, wanted.n), fatal: true})
		}
	}
}
