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
	as     purpose
	txid   uint64 // the transaction that is read
	format string // "" for a file that nothing was written to
	loaded *rules.Loading
	found  sums   // of the records that are there
	wanted sums   // as stored with the last change; nil: unknown
	wrote  uint64 // the transaction of that change; 0: unknown
	entries

	mayBeOlder bool // the last change may be missing
	records    uint64
	wrong      []problem
	raw        []rules.Record // all records that are sound, toRepair
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

func newReading(as purpose) *reading {
	return &reading{as: as, loaded: &rules.Loading{}, found: sums{}, entries: entries{held: map[store.PartnerID]*holding{}}}
}

// read reads a file as of the last transaction. It returns an error only if nothing can be read: what is wrong otherwise is
// in reading.wrong.
func read(f *os.File, as purpose) (*reading, error) {
	scan, err := boltfile.OpenScan(f)
	if err != nil {
		return nil, err
	}
	return readScan(scan, as)
}

func readScan(scan *boltfile.Scan, as purpose) (*reading, error) {
	r := newReading(as)
	if damage := scan.Records(r.record); damage != nil {
		if !scan.HasAll() {
			r = newReading(as)
			scan.Leaves(r.leaf)
		}
		r.report(problem{text: damage.Error()})
		r.format = cmp.Or(r.format, Format)
	} else if r.format == "" && r.records > 0 {
		r.format = Format
		r.report(problem{bucket: inMeta, key: keyFormat, text: "is missing"})
	}
	if r.format != "" && r.format != Format && r.format != formerFormat {
		return nil, codec.UnknownFormat{Found: r.format, Known: Format}
	}
	r.txid, r.mayBeOlder = scan.Txid(), scan.MayBeOlder()
	r.compareSums()
	return r, nil
}

// readWhole reads a file of which nothing is wrong.
func readWhole(f *os.File, as purpose) (*reading, error) {
	r, err := read(f, as)
	if err != nil {
		return nil, err
	}
	err = r.problems()
	if err == nil && !r.isComplete() {
		err = errors.New("it has no records")
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", codec.ErrCorrupt, err)
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
	if r == nil || r.wanted == nil || r.mayBeOlder || r.wrote+1 < r.txid {
		return nil
	}
	return r.wanted
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

// record reads a record of a file whose pages are sound, or a bucket.
func (r *reading) record(bucket string, k, sealed []byte) {
	key := string(k)
	switch {
	case k == nil && !slices.Contains(buckets, bucket):
		r.report(problem{text: fmt.Sprintf("has an unknown bucket %q", bucket)})
	case k == nil:
	case isPlain(bucket, key):
		r.format = string(sealed)
	default:
		value, seal, ok := unseal(bucket, key, sealed)
		r.add(bucket, key, value, seal, ok)
	}
}

// add adds a record; ok says that it is sound.
func (r *reading) add(bucket, key string, value []byte, seal uint64, ok bool) {
	if !ok {
		seal = 0 // so that the sums do not match
	}
	r.records++
	if isSummed(bucket, key) {
		r.found.add(bucket, seal)
	}
	if !ok {
		r.damaged(bucket, key, "is damaged")
		return
	}
	if err := r.decode(bucket, key, value); err != nil {
		r.damaged(bucket, key, err.Error())
	} else if r.as == toRepair {
		r.raw = append(r.raw, rules.Record{Kind: bucket, Key: key, Value: slices.Clone(value)})
	}
}

// leaf reads what may be a record of a file with damaged pages.
func (r *reading) leaf(key, sealed []byte) {
	if isPlain(inMeta, string(key)) && len(sealed) < sealSize {
		r.format = string(sealed)
		return
	}
	for _, bucket := range buckets {
		if value, seal, ok := unseal(bucket, key, sealed); ok {
			r.add(bucket, string(key), value, seal, ok)
			return
		}
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
	case !slices.Contains(buckets, bucket): // which was reported
		return nil
	case bucket == inDocuments, r.as == toCompare:
		return nil
	}
	return r.loaded.Add(rules.Record{Kind: bucket, Key: key, Value: value})
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
	if r.format == "" || r.isComplete() {
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
	// All pages can be sound, but of an earlier state, when the pages of the last transaction were never written and its
	// meta page was. The pages that it should have replaced are two transactions older or more, as bbolt never writes over
	// those of the transaction before. A difference of one is no damage: making a bucket does not write the sums.
	if r.wrote > 0 && r.wrote+1 < r.txid {
		r.report(problem{text: fmt.Sprintf("has the records of transaction %d, but is of transaction %d", r.wrote, r.txid)})
	}
	for _, bucket := range buckets {
		found, wanted := r.found[bucket], r.wanted[bucket]
		if found.n != wanted.n || found.seals != wanted.seals && !unsound[bucket] {
			r.report(problem{bucket: bucket, text: fmt.Sprintf("has %d records where %d were written, or older ones", found.n, wanted.n)})
		}
	}
}
