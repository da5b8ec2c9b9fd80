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
	"mtagd/store/rules"
)

// Open opens or creates control.db in dir, a directory that must exist. now is the engine's clock. Open fails with store.ErrInUse
// when another process has the file open.
func Open(dir string, now func() time.Time, log *slog.Logger) (*Data, error) {
	d := &Data{path: filepath.Join(dir, fileName), now: now, log: log, AuditLimits: store.DefaultAuditLimits}
	err := d.open()
	if errors.Is(err, errReplaced) {
		err = d.open() // what was written is read again and checked, as at every start
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// errReplaced says that the copy was put in the place of a damaged file.
var errReplaced = errors.New("control.db was replaced")

// open opens the file.
func (d *Data) open() error {
	var found *reading
	db, err := boltfile.OpenChecked(d.path, func(f *os.File) (err error) {
		for _, path := range []string{d.path, copyPath(d.path)} { // a replacement was cut off
			if err := os.Remove(path + boltfile.NewSuffix); !errors.Is(err, os.ErrNotExist) && err != nil {
				return err
			}
		}
		found, err = read(f, 0, toLoad)
		if err != nil && !errors.Is(err, codec.ErrCorrupt) && !isWrongBit(err) {
			return err
		}
		if err == nil && len(found.wrong) == 0 {
			return nil
		}
		if err == nil {
			err = found.problems()
		}
		if failed := d.takeCopy(found); !errors.Is(failed, errReplaced) {
			return fmt.Errorf("%w. Its copy cannot take its place: %v. Nothing was changed. Restore a backup, or let \"mtagd repair\" make a new "+
				"directory of what can be read", err, failed)
		}
		return errReplaced
	})
	if found != nil {
		defer found.close()
	}
	if err != nil {
		return err
	}
	if found != nil && found.format != "" {
		err = upgrade(db, found.format, found.wanted)
	} else {
		found = newReading()
		found.wanted = sums{}
		err = create(db)
	}
	if err != nil {
		return errors.Join(err, db.Close())
	}
	d.db = db
	d.load(found)
	if err := d.openCopy(); err != nil {
		return errors.Join(err, d.Close())
	}
	return nil
}

// writeNew writes a new file with these records. A record with the sums of all others is not among them, or is replaced.
func writeNew(path string, records []write) error {
	db, err := bolt.Open(path, 0o600, &bolt.Options{FreelistType: bolt.FreelistMapType})
	if err != nil {
		return err
	}
	records = slices.DeleteFunc(records, func(w write) bool { return w.bucket == inMeta && w.key == keySums })
	slices.SortFunc(records, func(a, b write) int { return cmp.Or(cmp.Compare(a.bucket, b.bucket), cmp.Compare(a.key, b.key)) })
	err = create(db)
	sums := sums{}
	for batch := range slices.Chunk(records, writtenAtOnce) {
		if err == nil {
			err = db.Update(func(tx *bolt.Tx) error { return storeAll(transaction{Tx: tx}, sums, batch) })
		}
	}
	return errors.Join(err, db.Close())
}

// writtenAtOnce is how many records one transaction writes into a new file.
const writtenAtOnce = 20_000

// create makes the buckets of a new file.
func create(db *bolt.DB) error {
	return db.Update(func(tx *bolt.Tx) error {
		if err := createBuckets(tx); err != nil {
			return err
		}
		return storeAll(transaction{Tx: tx}, sums{}, []write{{inMeta, keyFormat, []byte(Format)}})
	})
}

func createBuckets(tx *bolt.Tx) error {
	for _, name := range buckets {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return err
		}
	}
	return nil
}

// upgrade writes this version of the format, and makes the buckets that an earlier file does not have. Without sums, the file has none or they
// stay.
func upgrade(db *bolt.DB, from string, of sums) error {
	complete := from == Format
	err := db.View(func(tx *bolt.Tx) error {
		for _, name := range buckets {
			complete = complete && tx.Bucket([]byte(name)) != nil
		}
		return nil
	})
	if err != nil || complete {
		return err
	}
	return db.Update(func(tx *bolt.Tx) error {
		if err := createBuckets(tx); err != nil {
			return err
		}
		format := write{inMeta, keyFormat, []byte(Format)}
		if of == nil {
			return format.put(tx)
		}
		return storeAll(transaction{Tx: tx}, of, []write{format}) // the sums say that this is the last transaction
	})
}

// load takes over what was read.
func (d *Data) load(r *reading) {
	d.sums, d.entries = r.wanted, r.entries
	d.Data = rules.New(driver{d}, r.state, d.log)
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
	r, err := read(f, 0, toLoad)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	d.file, d.sums = f, r.wanted
	d.Data = rules.New(driver{d}, r.state, d.log)
	return d, r.close()
}
