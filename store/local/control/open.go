package control

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
)

// Open opens or creates control.db in dir, a directory that must exist. now is the engine's clock. A file of an older format is
// migrated. Open fails with store.ErrInUse when another process has the file open.
func Open(dir string, now func() time.Time, log *slog.Logger) (*Data, error) {
	d := &Data{path: filepath.Join(dir, fileName), now: now, log: log, AuditLimits: store.DefaultAuditLimits}
	for {
		older, err := d.open()
		if err != nil || !older {
			return d, err
		}
		// Migrated. What was written is read again and checked, as at every start.
		if err := d.db.Close(); err != nil {
			return nil, err
		}
	}
}

// open opens the file. older: it was of an older format, and is migrated now.
func (d *Data) open() (older bool, err error) {
	var found *reading
	db, err := boltfile.OpenChecked(d.path, func(f *os.File) (err error) {
		if found, err = read(f, 0); err != nil {
			return err
		}
		if err := found.fatal(); err != nil {
			return errors.Join(err, found.close())
		}
		if corrected := found.scan.Corrected(); len(corrected) > 0 {
			d.log.Error("control.db was damaged: wrong bits were corrected", "file", d.path, "bytes", corrected)
		}
		return found.scan.Write(f)
	})
	if found != nil {
		defer found.close()
	}
	if err != nil {
		return false, err
	}
	if found != nil && found.format == format2 {
		err = addBuckets(db)
	} else if found != nil && found.format == format1 {
		err = migrate(db, found, d.now().UTC(), d.log)
		older = true
	} else if found == nil || found.format == "" {
		found = newReading()
		found.wanted = sums{}
		err = create(db)
	}
	if err != nil {
		return false, errors.Join(err, db.Close())
	}
	d.db = db
	if !older {
		d.load(found)
	}
	return older, nil
}

// create makes the buckets of a new file.
func create(db *bolt.DB) error {
	return db.Update(func(tx *bolt.Tx) error {
		if err := createBuckets(tx); err != nil {
			return err
		}
		return storeAll(tx, sums{}, []write{{inMeta, keyFormat, []byte(format2)}})
	})
}

// addBuckets makes the buckets that the file of an earlier version does not have.
func addBuckets(db *bolt.DB) error {
	complete := true
	err := db.View(func(tx *bolt.Tx) error {
		for _, name := range buckets {
			complete = complete && tx.Bucket([]byte(name)) != nil
		}
		return nil
	})
	if err != nil || complete {
		return err
	}
	return db.Update(createBuckets)
}

// load takes over what was read.
func (d *Data) load(r *reading) {
	for _, p := range r.wrong {
		d.log.Error("control.db is damaged: a record is out of service, with all that belongs to it",
			"bucket", p.bucket, "key", p.key, "problem", p.text)
	}
	d.dir, d.state = store.NewDirectory(), r.state
	d.sums, d.stored, d.counts = r.wanted, r.uses, map[store.PartnerID]*counts{}
	d.state.derive()
	d.suppressing.Store(len(d.state.suppressed)+len(d.state.removals) > 0)
	for _, p := range d.state.partners {
		d.dir.SetPartner(p)
	}
	for _, k := range d.state.keys {
		d.dir.SetKey(k)
		if at, used := d.stored[k.ID]; used {
			d.dir.SetLastUse(k.ID, at)
		}
	}
	for _, o := range d.state.sessions {
		if !o.IsLink {
			d.dir.SetSession(o)
		}
	}
	for _, m := range d.state.merchants {
		d.dir.SetMerchant(m.Merchant)
	}
	for id := range d.state.damaged {
		if d.state.damagedTags[store.TagID(id)] {
			d.dir.SetDamagedTag(store.TagID(id))
		} else {
			d.dir.SetDamaged(id)
		}
	}
	for _, t := range d.state.tags {
		d.publish(d.state.complete(t))
	}
}

// OpenReadOnly opens existing control data for Verify, Salvage and the reading methods but Audit. Its directory is empty. The
// file may be damaged or of an older format.
func OpenReadOnly(dir string) (*Data, error) {
	d := &Data{path: filepath.Join(dir, fileName), dir: store.NewDirectory(), now: time.Now, log: slog.New(slog.DiscardHandler)}
	f, err := boltfile.OpenToRead(d.path)
	if err != nil {
		return nil, err
	}
	r, err := read(f, 0)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	d.file, d.state = f, r.state
	d.state.derive()
	return d, r.close()
}
