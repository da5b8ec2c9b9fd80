package boltfile

import (
	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/codec"
)

// OpenReadOnly opens an existing file to verify it. Other processes may open it in the same way, but not to write. It fails
// like Open, and also when a bucket is missing.
func OpenReadOnly(path, format string, buckets ...[]byte) (db *bolt.DB, err error) {
	err = CatchDamage(path, func() (err error) {
		db, err = openReadOnly(path, format, buckets)
		return err
	})
	return db, err
}

// Check passes what is wrong with a file's pages to found. Nothing else is written meanwhile.
//
// It first reads everything in this goroutine: bbolt's own check runs in another one, where the memory fault of a reference
// out of the file would end the process.
func Check(db *bolt.DB, found func(error)) {
	file := db.Path()
	if err := CatchDamage(file, func() error { return db.View(touch) }); err != nil {
		found(err)
		return
	}
	if err := CatchDamage(file, func() error {
		tx, err := db.Begin(!db.IsReadOnly()) // the check needs the list of free pages, which a writer changes
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // never fails here
		for err := range tx.Check() {
			found(err)
		}
		return nil
	}); err != nil {
		found(err)
	}
}

// touch reads the ends of every key and value.
func touch(tx *bolt.Tx) error {
	sum := byte(0)
	ends := func(b []byte) {
		if len(b) > 0 {
			sum += b[0] + b[len(b)-1]
		}
	}
	var walk func(b *bolt.Bucket) error
	walk = func(b *bolt.Bucket) error {
		return b.ForEach(func(k, v []byte) error {
			ends(k)
			ends(v)
			if v != nil {
				return nil
			}
			below := b.Bucket(k)
			if below == nil {
				return codec.ErrCorrupt
			}
			return walk(below)
		})
	}
	return tx.ForEach(func(_ []byte, b *bolt.Bucket) error { return walk(b) })
}
