package local

import (
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// ErrInUse is returned when another process has the data directory open.
var ErrInUse = errors.New("data directory is in use by another process")

// lockWait is how long an opener waits for another process to let go of a file: an operator
// command holds it for milliseconds, a server for as long as it runs.
const lockWait = 2 * time.Second

// bucketMeta holds "format" → version.
var bucketMeta = []byte("meta")

// openBolt opens or creates a bbolt file with some buckets beside bucketMeta. It refuses one of another format version,
// and fails with ErrInUse when another process has it open.
func openBolt(path, format string, buckets ...[]byte) (*bolt.DB, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockWait, FreelistType: bolt.FreelistMapType})
	if errors.Is(err, berrors.ErrTimeout) {
		return nil, ErrInUse
	}
	if err == nil {
		if err = prepare(db, format, buckets); err != nil {
			err = errors.Join(err, db.Close())
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return db, nil
}

// prepare creates the buckets of a new file and checks the format of an old one.
func prepare(db *bolt.DB, format string, buckets [][]byte) error {
	return db.Update(func(tx *bolt.Tx) error {
		for _, name := range append(buckets, bucketMeta) {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		meta := tx.Bucket(bucketMeta)
		switch found := meta.Get([]byte("format")); {
		case found == nil:
			return meta.Put([]byte("format"), []byte(format))
		case string(found) != format:
			return fmt.Errorf("format %q is not known to this version, which reads %q", found, format)
		}
		return nil
	})
}
