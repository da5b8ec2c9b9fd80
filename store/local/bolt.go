package local

import (
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"

	"mtagd/store"
)

// lockWait is how long an opener waits for another process to let go of a file: an operator
// command holds it for milliseconds, a server for as long as it runs.
const lockWait = 2 * time.Second

// bucketMeta has the version of a file's layout under keyFormat.
var (
	bucketMeta = []byte("meta")
	keyFormat  = []byte("format")
)

// openBolt opens or creates a bbolt file with some buckets beside bucketMeta. It refuses one of another format version,
// and fails with store.ErrInUse when another process has it open.
func openBolt(path, format string, buckets ...[]byte) (db *bolt.DB, err error) {
	err = catchDamage(path, func() (err error) {
		db, err = openSound(path, format, buckets)
		return err
	})
	return db, err
}

func openSound(path, format string, buckets [][]byte) (*bolt.DB, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait, FreelistType: bolt.FreelistMapType})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, store.ErrInUse
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := prepare(db, format, buckets); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	return db, nil
}

// prepare creates the buckets of a new file and checks the format of an old one.
func prepare(db *bolt.DB, format string, buckets [][]byte) error {
	return db.Update(func(tx *bolt.Tx) error {
		meta, err := tx.CreateBucketIfNotExists(bucketMeta)
		if err != nil {
			return err
		}
		if found := meta.Get(keyFormat); found != nil && string(found) != format {
			return otherFormat(found, format)
		}
		for _, name := range buckets {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return meta.Put(keyFormat, []byte(format))
	})
}

// catchDamage runs what uses a bbolt file outside of a request. bbolt panics where a page is damaged, and a file that was cut
// short is a memory fault: either becomes an error that names the file, in place of the end of the process.
func catchDamage(file string, do func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: %w: %v", file, errCorrupt, p)
		}
	}()
	return do()
}
