// Package archive keeps events for years: packed, by merchant, in the order of receipt. Events arrive in the journal;
// package local moves them here later. They keep their positions. To this package, an event is only a position and a body.
//
// # How events are stored
//
// The events of a merchant are in blocks: up to about 32 KiB of neighbouring events, compressed together. The blocks are in
// a Badger database of their own, which keeps all values in its tables. Compactions give back the space of deleted blocks.
//
// Add stores a run of events, of any merchants. The last blocks of a merchant may not be full. Unless they are much larger
// than the merchant's part of the run, Add rewrites their events together with the new ones (add.go). So small merchants do
// not get a block for each event, and no event is rewritten more often than the logarithm of a block's size.
//
// A run may take several commits, and is on disk when Add returns (badgerdb.DB.Flush). The commit that deletes a block also
// has its events in another block. The last commit moves the boundary. After a kill between two of them, or while a merge
// flushes the first ones, the archive has events after the boundary. Reads leave them out, because the journal has them too.
// When they are added again, Add skips those that are not after the last block of their merchant.
//
// Removing events leaves no gap between blocks: a block from which events are removed is replaced by one with the same range
// of positions, even if no event is left. So where two blocks overlap, the one with the greater version is right. For this
// reason a backup needs no deletions, and repaired blocks can be put together again (restore.go).
//
// # What is in Badger
//
// The directory archive/ is of format "1". All integers are big endian, except for uvarints. A merchant is the 16 bytes of
// its UUID. A position is the number of a chunk of the journal (8 bytes) and the place in that chunk (2 bytes). Commits are
// numbered from 1: that is the version of what they write.
//
//	'F'                                   format version, in ASCII digits
//	'S'                                   boundary (8 bytes): all events of the journal's chunks up to it are here
//	'P'                                   version (8 bytes) of the last commit before the last purge, if there was one
//	'G'                                   number of a chunk (8 bytes): blocks that begin up to it may be behind a gap
//	'M' merchant                          number of events, 0, bytes of the blocks (uvarints),
//	                                      end of the last block (position)
//	'B' merchant, last position, revision (4 bytes)
//	                                      block. The revision is greater than that of an earlier block with this position
//
// The values of 'S', 'P', 'G' and 'M' are sealed (codec.Seal). A block is:
//
//	length of the block (4 bytes, with these and the checksum) | merchant | first position | last position |
//	number of events (4 bytes) | length of the content (4 bytes) | content, zstd-compressed | CRC-32C of all that (4 bytes)
//
// The content has for each event, in the order of positions:
//
//   - the number of its chunk, less that of the event before (uvarint). For the first event: less that of the block's first
//     position
//   - its place in the chunk (uvarint), less that of the event before if both are of one chunk
//   - the body (length-prefixed)
package archive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
)

// Archive is all merchants' archived events.
type Archive struct {
	dir   string
	db    *badgerdb.DB
	log   *slog.Logger
	coder *coder

	boundary atomic.Uint64 // as of the last flush
	gaps     atomic.Uint64 // blocks that begin in a chunk up to this one may be behind a gap
	last     uint64        // the version of the last commit; guarded by writing
	moved    uint64        // the boundary as of the last commit; guarded by writing
	isNew    bool          // nothing was committed; guarded by writing

	writing   sync.Mutex // held by whoever changes the archive
	snapshots int        // that are open; guarded by writing

	purges     atomic.Int32          // calls of Purge that run or wait
	compacting sync.Mutex            // held by whoever drops keys or compacts tables; locked before writing
	failed     atomic.Pointer[error] // the error of a write: nobody knows what is on the disk, so nothing more is written

	all total // the sum over the merchants' counts
}

// total is what all blocks have.
type total struct{ events, bytes atomic.Int64 }

// Event is an archived event. Its body is valid until the function that got the event returns.
type Event struct {
	store.Position
	Body []byte
}

// Open opens or creates the archive in dir.
func Open(dir string, log *slog.Logger) (*Archive, error) { return open(dir, log, badgerdb.Open) }

// OpenReadOnly opens an existing archive, which no other process has open, to read it. It changes nothing.
func OpenReadOnly(dir string, log *slog.Logger) (*Archive, error) {
	return open(dir, log, badgerdb.OpenReadOnly)
}

func open(dir string, log *slog.Logger, openDB func(dir string, log *slog.Logger) (*badgerdb.DB, error)) (*Archive, error) {
	db, err := openDB(dir, log)
	if err != nil {
		return nil, err
	}
	a := &Archive{dir: dir, db: db, log: log}
	if err := a.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", dir, err), db.Close())
	}
	return a, nil
}

// load reads what is not of one merchant.
func (a *Archive) load() (err error) {
	if a.coder, err = newCoder(); err != nil {
		return err
	}
	a.last = a.db.MaxVersion()
	err = a.db.View(func(txn *badgerdb.Txn) error {
		found, known, err := txn.Get(keyFormat)
		if a.isNew = !known; err == nil && known && string(found) != Format {
			err = codec.UnknownFormat{Found: string(found), Known: Format}
		}
		if err != nil {
			return err
		}
		if a.moved, err = getNumber(txn, keyBoundary); err != nil {
			return err
		}
		a.boundary.Store(a.moved)
		gaps, err := getNumber(txn, keyGaps)
		a.gaps.Store(gaps)
		return err
	})
	if err == nil && a.isNew && a.last > 0 {
		err = fmt.Errorf("%w: the archive has no format version", codec.ErrCorrupt)
	}
	if err == nil {
		err = a.sumAll()
	}
	return err
}

// allowGaps notes that blocks which begin in a chunk up to this one may be behind a gap.
func (a *Archive) allowGaps(upTo uint64) error {
	a.gaps.Store(upTo)
	err := a.commit(numberEntry(keyGaps, upTo))
	if err == nil {
		err = a.flush()
	}
	if badgerdb.IsNearlyFull(err) {
		return nil // the next start notes it
	}
	return err
}

// getNumber returns the number of a key; 0 when there is none.
func getNumber(txn *badgerdb.Txn, key []byte) (n uint64, err error) {
	v, found, err := txn.Get(key)
	if err == nil && found {
		n, err = parseNumber(key, v)
	}
	return n, err
}

// sumAll sums what all merchants have.
func (a *Archive) sumAll() error {
	a.all.events.Store(0)
	a.all.bytes.Store(0)
	return a.Each(func(_ store.MerchantKey, u Usage) error {
		a.all.events.Add(int64(u.Events))
		a.all.bytes.Add(int64(u.Stored))
		return nil
	})
}

// Events returns the number of all archived events.
func (a *Archive) Events() int { return int(a.all.events.Load()) }

// Sizes returns the bytes of the tables, and about how many of these are dead. What was not flushed is not counted.
func (a *Archive) Sizes() (all, dead int64) {
	all = a.db.TableBytes()
	return all, max(0, all-a.all.bytes.Load())
}

// Dir returns the archive's directory.
func (a *Archive) Dir() string { return a.dir }

// Boundary returns the number of a chunk of the journal: the archive has all events up to it, and reads return none after
// it.
func (a *Archive) Boundary() uint64 { return a.boundary.Load() }

// flush makes all commits durable. From now on they are read. The caller holds writing, or is alone.
func (a *Archive) flush() error {
	if err := a.db.Flush(); err != nil {
		return a.fail(err)
	}
	a.boundary.Store(a.moved)
	return nil
}

// commit writes entries, all of them or, with an error, none. They are read after the next flush. The caller holds writing,
// or is alone.
func (a *Archive) commit(entries ...codec.Entry) error {
	if err := a.db.Room(0); err != nil { // else what is put could not be flushed
		return err
	}
	if a.isNew {
		entries = append([]codec.Entry{{Key: keyFormat, Value: []byte(Format)}, numberEntry(keyGaps, a.gaps.Load())}, entries...)
	}
	for i := range entries {
		entries[i].Version = a.last + 1
	}
	err := a.db.Put(entries...)
	if err == nil {
		a.last++
		a.isNew = false
	}
	return err
}

// Close closes the files. No other method may run or be called.
func (a *Archive) Close() error {
	a.coder.close()
	return a.db.Close()
}

// fail notes the error of a write, and returns it. When the disk is only full, a later write may succeed.
func (a *Archive) fail(err error) error {
	if err == nil || badgerdb.IsNearlyFull(err) || errors.Is(err, context.Canceled) {
		return err
	}
	err = fmt.Errorf("a write to %s failed, and no more are tried: %w", a.dir, err)
	a.failed.Store(&err)
	return err
}

// Failure returns the error of the write after which no more are tried until a restart, or nil.
func (a *Archive) Failure() error {
	if err := a.failed.Load(); err != nil {
		return *err
	}
	return nil
}
