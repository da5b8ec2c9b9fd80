package control

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
	"mtagd/store/rules"
)

// Open opens or creates control.db in dir, a directory that must exist. now is the engine's clock. Open fails with
// store.ErrInUse when another process has the file open.
func Open(dir string, now func() time.Time, log *slog.Logger) (*Data, error) {
	return OpenNewest(dir, now, log, func() ([]uint64, error) { return nil, nil })
}

// OpenNewest is Open for a caller who knows which sums the newest records may have, the former one first. It calls sums when
// the copy may have to take the place of control.db. control.db is locked then.
func OpenNewest(dir string, now func() time.Time, log *slog.Logger, sums func() ([]uint64, error)) (*Data, error) {
	d := &Data{path: filepath.Join(dir, fileName), now: now, log: log, AuditLimits: store.DefaultAuditLimits}
	err := d.open(sums)
	if errors.Is(err, errReplaced) {
		err = d.open(sums) // what was written is read again and checked, as at every start
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// errReplaced says that the copy was put in the place of a damaged file.
var errReplaced = errors.New("control.db was replaced")

// open opens the file.
func (d *Data) open(sumsOf func() ([]uint64, error)) error {
	found := newReading(toLoad)
	found.wanted = sums{}
	isMissing := !durable.Exists(d.path)
	db, err := boltfile.OpenChecked(d.path, bolt.Options{}, func(f *os.File) (err error) {
		for _, path := range []string{d.path, copyPath(d.path)} { // a replacement was cut off
			if err := durable.Remove(path + durable.NewSuffix); err != nil {
				return err
			}
		}
		info, err := f.Stat()
		if err != nil || info.Size() == 0 && !durable.Exists(copyPath(d.path)) { // a new one
			return err
		}
		r, err := read(f, toLoad)
		if err != nil {
			err = fmt.Errorf("%s: %w", d.path, err)
		}
		switch {
		case err == nil && len(r.wrong) == 0:
			if r.format != "" {
				found = r
			}
			return nil
		case err == nil:
			err = r.problems()
		case !errors.Is(err, codec.ErrCorrupt) && !isWrongBit(err):
			return err
		}
		may, failed := sumsOf()
		if failed == nil {
			failed = d.takeCopy(r, may)
		}
		if !errors.Is(failed, errReplaced) {
			if isMissing && info.Size() == 0 { // nobody else has made it meanwhile
				failed = errors.Join(failed, os.Remove(d.path))
			}
			return fmt.Errorf("%w. Its copy cannot take its place: %w. Nothing was changed. Restore a backup, or let \"mtagd repair\" make a new "+
				"directory of what can be read", err, failed)
		}
		return errReplaced
	})
	if err != nil {
		return err
	}
	if err := prepare(db, found.format, found.wanted); err != nil {
		return errors.Join(err, db.Close())
	}
	d.db, d.sums, d.entries = db, found.wanted, found.entries
	d.Data = rules.New(driver{d}, found.loaded, d.log)
	if err := d.openCopy(); err != nil {
		return errors.Join(err, d.Close())
	}
	return nil
}

// writeNew writes a new file with these records. A record with the sums of all others is not among them, or is replaced.
func writeNew(path string, records []rules.Record) error {
	db, err := boltfile.OpenChecked(path, bolt.Options{}, func(*os.File) error { return nil })
	if err != nil {
		return err
	}
	records = slices.DeleteFunc(records, func(w rules.Record) bool { return w.Kind == inMeta && w.Key == keySums })
	slices.SortFunc(records, func(a, b rules.Record) int { return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Key, b.Key)) })
	sums := sums{}
	err = prepare(db, "", sums)
	for batch := range slices.Chunk(records, writtenAtOnce) {
		if err == nil {
			err = db.Update(func(tx *bolt.Tx) error { return storeAll(tx, sums, batch) })
		}
	}
	return errors.Join(err, db.Close())
}

// writtenAtOnce is how many records one transaction writes into a new file.
const writtenAtOnce = 20_000

// prepare writes this version of the format into a file of another one, and makes the buckets that are missing.
func prepare(db *boltfile.DB, format string, of sums) error {
	ready := format == Format
	err := db.View(func(tx *bolt.Tx) error {
		for _, name := range buckets {
			ready = ready && tx.Bucket([]byte(name)) != nil
		}
		return nil
	})
	if err != nil || ready {
		return err
	}
	return db.Update(func(tx *bolt.Tx) error {
		for _, name := range buckets {
			if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
				return err
			}
		}
		// storeAll also writes the sums, with the number of this transaction.
		return storeAll(tx, of, []rules.Record{{Kind: inMeta, Key: keyFormat, Value: []byte(Format)}})
	})
}

// OpenReadOnly opens existing control data for Verify, Repair and the reading methods but Audit. The file may be damaged.
func OpenReadOnly(dir string) (*Data, error) { return openToRead(filepath.Join(dir, fileName)) }

// OpenCopy is OpenReadOnly for the copy, when there is nothing of control.db to read.
func OpenCopy(dir string) (*Data, error) { return openToRead(copyPath(filepath.Join(dir, fileName))) }

func openToRead(path string) (*Data, error) {
	d := &Data{path: path, now: time.Now, log: slog.New(slog.DiscardHandler)}
	f, err := boltfile.OpenToRead(d.path)
	if err != nil {
		return nil, err
	}
	r, err := read(f, toLoad)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	d.file, d.sums = f, r.wanted
	d.Data = rules.New(driver{d}, r.loaded, d.log)
	return d, nil
}
