package control

import (
	"cmp"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
	"mtagd/store/rules"
)

// reading is what is read of a control.db, all of it, before anything is served.
type reading struct {
	scan   *boltfile.Scan
	format string // "" for a file that nothing was written to
	state  *rules.State
	found  sums   // of the records that are there
	wanted sums   // as stored with the last change; nil: unknown
	wrote  uint64 // the transaction of that change; 0: unknown
	entries

	records uint64
	wrong   []problem

	as  purpose
	raw []write // all records that are sound, toRepair
}

// purpose is what a file is read for. To compare, it keeps no records.
type purpose uint8

const (
	toCompare purpose = iota
	toLoad
	toRepair
)

// problem is something that is wrong with a file.
type problem struct {
	bucket, key string // both may be empty
	text        string
}

func (p problem) where() string {
	if p.bucket == "" {
		return fileName
	}
	return fmt.Sprintf("%s: %s %q", fileName, p.bucket, p.key)
}

func newReading() *reading {
	return &reading{state: rules.NewState(), found: sums{}, entries: entries{held: map[store.PartnerID]*holding{}}}
}

// read reads a file as of a transaction; 0 for the last one. It returns an error only if nothing can be read: what is wrong otherwise is
// in reading.wrong. The caller closes reading.scan.
func read(f *os.File, txid uint64, as purpose) (r *reading, err error) {
	r = newReading()
	r.as = as
	scan, err := boltfile.OpenScan(f, boltfile.ScanOptions{Txid: txid, Bucket: isKnown})
	if err != nil {
		return nil, err
	}
	r.scan = scan
	if damage := scan.Check(); damage != nil {
		r.report(problem{text: damage.Error()})
		err = boltfile.CatchDamage(fileName, func() error { scan.Leaves(r.leaf); return nil })
		r.format = cmp.Or(r.format, Format)
	} else {
		err = scan.Records(r.record)
		if r.format == "" && r.records > 0 {
			r.format = Format
			r.report(problem{bucket: inMeta, key: keyFormat, text: "is missing"})
		}
	}
	if err == nil && r.format != "" && r.format != Format && r.format != formerFormat {
		err = codec.UnknownFormat{Found: r.format, Known: Format}
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	r.compareSums()
	return r, nil
}

// readWhole reads a file of which nothing is wrong. Unless want is nil, it must have the records with these sums.
func readWhole(f *os.File, want sums, as purpose) (*reading, error) {
	r, err := read(f, 0, as)
	if err != nil {
		return nil, err
	}
	err = r.problems()
	if err == nil && (!r.isComplete() || want != nil && r.wanted.sum() != want.sum()) {
		err = errors.New("it is of another time")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", codec.ErrCorrupt, err), r.close())
	}
	return r, nil
}

// isWrongBit reports whether a format version is only unknown because one of its bits is wrong.
func isWrongBit(err error) bool {
	unknown, is := errors.AsType[codec.UnknownFormat](err)
	return is && len(unknown.Found) == 1 && (bits.OnesCount8(unknown.Found[0]^Format[0]) == 1 || bits.OnesCount8(unknown.Found[0]^formerFormat[0]) == 1)
}

// isComplete reports whether all records are there, and as they were written last.
func (r *reading) isComplete() bool {
	if r.newest() == nil {
		return false
	}
	for _, bucket := range buckets {
		if r.found[bucket] != r.wanted[bucket] {
			return false
		}
	}
	return true
}

// newest returns the sums of the last transaction; nil: what was read may be of an earlier one.
func (r *reading) newest() sums {
	if r == nil || r.wanted == nil || r.wrote+1 < r.scan.Txid() {
		return nil
	}
	return r.wanted
}

func (r *reading) close() error {
	r.scan.Close()
	return nil
}

func (r *reading) report(p problem) { r.wrong = append(r.wrong, p) }

// problems returns an error for all that is wrong.
func (r *reading) problems() error {
	var errs []error
	for _, p := range r.wrong {
		errs = append(errs, fmt.Errorf("%s: %s", p.where(), p.text))
	}
	return errors.Join(errs...)
}

func bucketOf(path []string) string {
	if len(path) == 0 {
		return ""
	}
	return path[0]
}

// isKnown reports whether a file has this bucket.
func isKnown(path []string, name []byte, sequence uint64) bool {
	return len(path) == 0 && slices.Contains(buckets, string(name)) && sequence == 0
}

// record reads a record of a file whose pages are sound.
func (r *reading) record(rec boltfile.Record) error {
	bucket, key := bucketOf(rec.Path), string(rec.Key)
	if isPlain(bucket, key) {
		r.format = string(rec.Value)
		return nil
	}
	value, seal, ok := unseal(bucket, key, rec.Value)
	if !ok {
		r.records++
		r.damaged(bucket, key, "is damaged")
		seal = 0 // so that the sums do not match
	} else {
		r.sound(bucket, key, value)
	}
	if isSummed(bucket, key) {
		r.found.add(bucket, seal)
	}
	return nil
}

// leaf reads what may be a record of a file with damaged pages.
func (r *reading) leaf(key, sealed []byte) {
	if isPlain(inMeta, string(key)) && len(sealed) < sealSize {
		r.format = string(sealed)
		return
	}
	for _, bucket := range buckets {
		if value, seal, ok := unseal(bucket, key, sealed); ok {
			r.sound(bucket, string(key), value)
			if isSummed(bucket, string(key)) {
				r.found.add(bucket, seal)
			}
			return
		}
	}
}

// sound reads the value of a record, whose seal is right.
func (r *reading) sound(bucket, key string, value []byte) {
	r.records++
	if r.as == toRepair {
		r.raw = append(r.raw, write{bucket, key, slices.Clone(value)})
	}
	if err := r.decode(bucket, key, value); err != nil {
		r.damaged(bucket, key, err.Error())
	}
}

// damaged notes a damaged record.
func (r *reading) damaged(bucket, key, why string) {
	r.report(problem{bucket: bucket, key: key, text: why})
	if bucket == inLog {
		r.noteEntry(key, nil)
	}
}

// decode reads the value of a record, which is sound as far as can be known.
func (r *reading) decode(bucket, key string, value []byte) (err error) {
	switch {
	case bucket == inMeta && key == keySums:
		r.wanted, r.wrote, err = parseSums(value)
		return err
	case bucket == inLog:
		r.noteEntry(key, value)
		return nil
	case !slices.Contains(buckets, bucket):
		return fmt.Errorf("%w: an unknown bucket", codec.ErrCorrupt)
	case bucket == inDocuments, r.as == toCompare:
		return nil
	}
	return r.state.Load(rules.Record{Kind: bucket, Key: key, Value: value})
}

// noteEntry notes an entry of the audit log; value is nil when it is damaged.
func (r *reading) noteEntry(key string, value []byte) {
	if len(key) != auditKeySize {
		return
	}
	r.lastEntry = max(r.lastEntry, auditID(key))
	if value != nil {
		r.hold(holderIn(value), auditID(key))
	}
}

// compareSums finds out whether records are missing. In a bucket with damaged records only their number can be compared.
func (r *reading) compareSums() {
	if r.format == "" {
		return
	}
	if r.isComplete() {
		return
	}
	unsound := map[string]bool{}
	for _, p := range r.wrong {
		unsound[p.bucket] = true
	}
	if r.wanted == nil {
		r.report(problem{bucket: inMeta, key: keySums, text: "is missing, so it is not known which records are"})
		return
	}
	// The pages of an earlier state can all be sound, below the meta page of a later one whose own pages were not written. bbolt
	// never writes over the pages of the state before, so that state is two transactions earlier or more. One earlier is sound:
	// new buckets are made without sums.
	if r.wrote > 0 && r.wrote+1 < r.scan.Txid() {
		r.report(problem{text: fmt.Sprintf("has the records of transaction %d, but is of transaction %d", r.wrote, r.scan.Txid())})
	}
	for _, bucket := range buckets {
		found, wanted := r.found[bucket], r.wanted[bucket]
		if found.n != wanted.n || found.seals != wanted.seals && !unsound[bucket] {
			r.report(problem{bucket: bucket, text: fmt.Sprintf("has %d records where %d were written, or older ones", found.n, wanted.n)})
		}
	}
}
