package archive

import (
	"bytes"
	"context"
	"errors"

	"github.com/dgraph-io/badger/v4"
)

var errBusy = errors.New("the archive is being copied")

// IsBusy reports whether an error says that the archive is being copied: a later call may succeed.
func IsBusy(err error) bool { return errors.Is(err, errBusy) }

// purgeKeys is how many keys are purged together. Meanwhile reads wait, and Badger compares each of these keys with every key of the
// tables that have one of them. The keys are neighbours, so these are few tables.
const purgeKeys = 500

// Purge removes the bytes of deleted blocks: afterwards, no file has anything of what was replaced or removed before the call. It
// fails while the archive is being copied (IsBusy), and when the disk has too little space to rewrite tables. It calls pace
// between keys.
//
// A compaction drops nearly all of these blocks. Purge looks for the others in all tables, so it reads the whole archive.
func (a *Archive) Purge(ctx context.Context, pace func()) error {
	a.compacting.Lock()
	defer a.compacting.Unlock()
	// A backup that has the deleted blocks must not be continued.
	if err := a.purging(func() error {
		return a.commit(func(txn *badger.Txn) error { return txn.Set(keyPurged, encodeNumber(keyPurged, a.versions.newest())) })
	}); err != nil {
		return err
	}
	if err := a.compact(); err != nil {
		return err
	}
	for from := []byte{prefixBlock}; from != nil; {
		dead, rest, err := a.deadKeys(ctx, from, pace)
		if err != nil {
			return err
		}
		if len(dead) > 0 {
			if err := a.purging(func() error { return a.drop(dead) }); err != nil {
				return err
			}
		}
		from = rest
	}
	return nil
}

// purging runs a part of a purge while nobody else writes.
func (a *Archive) purging(part func() error) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	if err := a.Failure(); err != nil {
		return err
	}
	if a.snapshots > 0 {
		return errBusy
	}
	return a.fail(part())
}

// Reclaim gives back the space of blocks that were replaced or removed, when it is a quarter of all. Without Reclaim, Badger gives it
// back when it happens to compact these tables, which may be much later.
func (a *Archive) Reclaim() error {
	if all, dead := a.Sizes(); dead < max(all/4, databaseSlack) {
		return nil
	}
	if !a.compacting.TryLock() {
		return nil // Purge does it
	}
	defer a.compacting.Unlock()
	if err := a.compact(); !IsBusy(err) {
		return err
	}
	return nil
}

// compact compacts all tables. The caller holds compacting.
func (a *Archive) compact() error {
	// Badger writes a memtable to a table only when it is full, or when a prefix is dropped of which a key is live.
	filler := append(blockKey{}.append(nil), 0)
	if err := a.purging(func() error {
		err := a.commit(func(txn *badger.Txn) error { return txn.Set(filler, nil) })
		if err == nil {
			err = a.db.Drop([][]byte{filler})
		}
		return err
	}); err != nil {
		return err
	}
	return a.db.Flatten()
}

// databaseSlack is about how much larger a small archive is than its blocks.
const databaseSlack = 8 << 20

// drop removes the bytes of those of the keys that are deleted. Badger's DropPrefix skips a prefix without a live key. So drop first
// writes a live key that begins with each of them. Reads skip these keys.
func (a *Archive) drop(keys [][]byte) error {
	a.versions.wait() // a reader may need them
	var dead [][]byte
	if err := a.viewNewest(func(txn *badger.Txn) error {
		for _, k := range keys {
			if found, err := get(txn, k, func([]byte) error { return nil }); err != nil {
				return err
			} else if !found {
				dead = append(dead, k)
			}
		}
		return nil
	}); err != nil || len(dead) == 0 {
		return err
	}
	if err := a.commit(func(txn *badger.Txn) error {
		for _, k := range dead {
			if err := txn.Set(append(bytes.Clone(k), 0), nil); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	return a.db.Drop(dead)
}

// deadKeys returns the next keys of deleted blocks of which files may still have bytes, beginning at the key from. The next call
// begins at rest, which is nil at the end.
func (a *Archive) deadKeys(ctx context.Context, from []byte, pace func()) (dead [][]byte, rest []byte, err error) {
	err = a.viewNewest(func(txn *badger.Txn) error {
		it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{prefixBlock}, AllVersions: true})
		defer it.Close()
		var last []byte
		for it.Seek(from); it.Valid(); it.Next() {
			if err := ctx.Err(); err != nil {
				return err
			}
			pace()
			item := it.Item()
			if bytes.Equal(item.Key(), last) {
				continue
			}
			last = item.KeyCopy(last)
			if len(dead) == purgeKeys {
				rest = bytes.Clone(last)
				break
			}
			if len(last) == purgeKeyBytes && !item.IsDeletedOrExpired() { // a kill has left it
				dead = append(dead, bytes.Clone(last[:blockKeyBytes]))
			} else if len(last) == blockKeyBytes && item.IsDeletedOrExpired() {
				dead = append(dead, bytes.Clone(last))
			}
		}
		return nil
	})
	return dead, rest, err
}
