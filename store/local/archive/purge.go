package archive

import (
	"bytes"
	"errors"
	"slices"

	"github.com/dgraph-io/badger/v4"
)

var errBusy = errors.New("the archive is being copied")

// IsBusy reports whether an error says that the archive is being copied: a later call may succeed.
func IsBusy(err error) bool { return errors.Is(err, errBusy) }

// purgeKeys is how many keys are purged together. Each time, Badger writes the tables again that have one of them.
const purgeKeys = 100_000

// Purge removes the bytes of deleted blocks: after it, no file has anything of what was replaced or removed before the call.
// It fails while the archive is being copied (IsBusy). It calls pace between keys. Nothing is written meanwhile.
//
// It looks for deleted blocks in all tables, so it reads the whole archive. A compaction has dropped most of them already.
func (a *Archive) Purge(pace func()) error {
	a.writing.Lock()
	defer a.writing.Unlock()
	if a.failed != nil {
		return a.failed
	}
	if a.snapshots > 0 {
		return errBusy
	}
	purged := false
	for from := []byte{prefixBlock}; from != nil; {
		dead, rest, err := a.deadKeys(from, pace)
		if err != nil {
			return err
		}
		if len(dead) > 0 {
			a.versions.wait() // a reader may need them
			if err := a.drop(dead, purged); err != nil {
				return a.fail(err)
			}
			purged = true
		}
		from = rest
	}
	return nil
}

// Reclaim gives back the space of blocks that were replaced or removed, when that is a quarter of all. Badger gives back more of
// it whenever it compacts tables, which may be much later.
func (a *Archive) Reclaim() error {
	if all, dead := a.Sizes(); dead < max(all/4, databaseSlack) {
		return nil
	}
	a.writing.Lock()
	defer a.writing.Unlock()
	if a.failed != nil || a.snapshots > 0 {
		return a.failed
	}
	// Badger writes a memtable to a table only when it is full, or when a prefix is dropped of which a key is live.
	filler := append(blockKey{}.append(nil), 0)
	err := a.commit(func(txn *badger.Txn) error { return txn.Set(filler, nil) })
	if err == nil {
		err = a.db.Drop([][]byte{filler})
	}
	if err == nil {
		err = a.db.Flatten()
	}
	return a.fail(err)
}

// databaseSlack is about how much larger a small archive is than its blocks.
const databaseSlack = 8 << 20

// drop removes the bytes of deleted keys. Badger's DropPrefix passes over prefixes of which no key is live. So drop first writes
// a live key with each of them. Reads pass over these keys.
func (a *Archive) drop(dead [][]byte, purged bool) error {
	if !purged {
		// A backup that has the deleted blocks must not be continued.
		if err := a.commit(func(txn *badger.Txn) error { return txn.Set(keyPurged, encodeNumber(keyPurged, a.versions.newest())) }); err != nil {
			return err
		}
	}
	for some := range slices.Chunk(dead, commitEntries) {
		if err := a.commit(func(txn *badger.Txn) error {
			for _, k := range some {
				if err := txn.Set(append(bytes.Clone(k), 0), nil); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return a.db.Drop(dead)
}

// deadKeys returns the keys of deleted blocks, of which files may still have something, from a key on. The next call goes on at
// rest, which is nil when that was all.
func (a *Archive) deadKeys(from []byte, pace func()) (dead [][]byte, rest []byte, err error) {
	err = a.viewNewest(func(txn *badger.Txn) error {
		it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{prefixBlock}, AllVersions: true})
		defer it.Close()
		var last []byte
		for it.Seek(from); it.Valid(); it.Next() {
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
