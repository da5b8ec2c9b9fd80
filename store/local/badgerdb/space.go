package badgerdb

import (
	"errors"

	"mtagd/store/local/space"
)

// margin is how many bytes stay free: a nearly full disk is slow, and freeing space takes some space itself.
const margin = 24 << 20

// ErrNearlyFull says that nothing was written because the disk is nearly full.
var ErrNearlyFull = errors.New("the disk is nearly full")

// IsNearlyFull reports whether an error says that nothing was written because the disk is nearly full.
func IsNearlyFull(err error) bool { return errors.Is(err, ErrNearlyFull) || space.IsFull(err) }

// room returns an error when the disk has too little space to write this many bytes of tables.
func (d *DB) room(bytes int64) error {
	if free, err := space.Free(d.dir); err == nil && free < bytes+margin {
		return ErrNearlyFull
	}
	return nil
}
