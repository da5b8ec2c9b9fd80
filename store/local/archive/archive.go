// Package archive keeps events for years: packed, by merchant, in the order of receipt. The journal is where events arrive;
// package local moves them here a while later. Events keep their positions. The package does not know what an event is: to
// it, an event is a position and a body.
//
// # How events are stored
//
// The events of a merchant are in blocks: up to about 16 KiB of neighbouring events, compressed together. A block never
// changes. Blocks are appended to pack files. A bbolt file, blocks.db, says where each block is: it is the directory.
//
// Add stores a run of events, of any merchants:
//
//  1. For each merchant, it takes the last blocks of the merchant that are not full, unless they are much larger than what
//     the run has for the merchant, and writes their events again together with the new ones (add.go). So small merchants do
//     not get a block for each event, and no event is written again more often than the logarithm of a block's size.
//  2. It appends the blocks to a pack file, and syncs it.
//  3. In one transaction it enters them in the directory, removes those that they replace, and moves the boundary.
//
// After a kill before the end of step 3, the pack file has blocks behind the end that the directory knows. Open cuts them
// off. So a run is stored as a whole or not at all.
//
// Bytes of a pack file that no block in the directory needs are dead. When most of a file is dead, its blocks are moved to
// the newest file, and the file is removed (reclaim.go).
//
// Files in reading order:
//
//	archive.go    Archive: open, close
//	add.go        stores a run of events
//	change.go     appends blocks, and changes the directory with them
//	read.go       reads events by position, of a merchant since a position, of all merchants
//	remove.go     removes events of a merchant
//	log.go        the pack files as a log: what a backup copies
//	restore.go    writes a log into a new archive
//	salvage.go    writes what can be read of damaged files into a new archive
//	reclaim.go    gives back the space of what was replaced or removed
//	verify.go     checks all data
//	block.go      the byte form of blocks
//	directory.go  the byte form of the directory
//	packfile.go   appends to pack files and reads them
//	metrics.go    counts blocks, events and bytes
//
// # What is in the directory archive/
//
// All integers are big endian, except for uvarints. A merchant is the 16 bytes of its UUID. A position is the number of a
// chunk of the journal (8 bytes) and the place in that chunk (2 bytes).
//
// N.pack, where N is a number in six digits or more, has blocks one after the other:
//
//	length of the block (4 bytes, with these and the checksum) | merchant | first position | last position |
//	number of events (4 bytes) | length of the content (4 bytes) | content, compressed with zstd | CRC-32C of all that (4 bytes)
//
// The content has, for each event in the order of positions: by how much its chunk's number is greater than that of the
// event before (uvarint; of the first event: than that of the first position), its place in the chunk (uvarint; less the
// place of the event before where both are of one chunk), and the body (length-prefixed).
//
// blocks.db is a bbolt file of format "1". Each value is sealed: it ends with its CRC-32C (4 bytes). Buckets:
//
//	meta       "format" → version
//	           "boundary" → seq (8 bytes): all events of the journal's chunks up to it are here
//	           "gaps lost" → number of a file (4 bytes), offset (4 bytes): the end of the log when a gap was lost (log.go)
//	blocks     merchant, last position → file, offset, length, number of events, bytes of the bodies (uvarints)
//	merchants  merchant → number of events, bytes of the bodies, bytes of the blocks (uvarints)
//	files      number of the file (4 bytes) → end, dead bytes, number of gaps (uvarints): nothing behind the end belongs to
//	           the file
package archive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
)

// Archive is all merchants' archived events.
type Archive struct {
	dir   string
	db    *bolt.DB
	log   *slog.Logger
	files *packFiles
	coder *coder

	boundary atomic.Uint64

	writing sync.Mutex // held by whoever changes the archive
	// Guarded by writing:
	failed    error           // of a write: nobody knows what is on the disk, so nothing more is written
	snapshots int             // that are open
	stuck     map[uint32]bool // files that cannot be moved as a whole

	metrics *metrics
}

// Event is an archived event. Its body is valid until the function that got the event returns.
type Event struct {
	codec.Position
	Body []byte
}

// Open opens or creates the archive in dir.
func Open(dir string, log *slog.Logger) (*Archive, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	db, err := boltfile.Open(filepath.Join(dir, directoryName), format, buckets...)
	if err != nil {
		return nil, err
	}
	a, err := open(dir, db, log)
	if err == nil {
		err = a.cutOff()
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return a, nil
}

// OpenReadOnly opens an existing archive, which no other process has open, to read it. It changes nothing.
func OpenReadOnly(dir string, log *slog.Logger) (*Archive, error) {
	db, err := boltfile.OpenReadOnly(filepath.Join(dir, directoryName), format, buckets...)
	if err != nil {
		return nil, err
	}
	a, err := open(dir, db, log)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return a, nil
}

func open(dir string, db *bolt.DB, log *slog.Logger) (*Archive, error) {
	coder, err := newCoder()
	if err != nil {
		return nil, err
	}
	a := &Archive{dir: dir, db: db, log: log, files: newPackFiles(dir), coder: coder, metrics: newMetrics(), stuck: map[uint32]bool{}}
	err = a.view(func(tx *bolt.Tx) error {
		boundary, err := loadBoundary(tx)
		a.boundary.Store(boundary)
		return errors.Join(err, a.metrics.load(tx))
	})
	return a, err
}

// cutOff removes what the directory does not know: what a kill has left behind the end of the newest file, and files that
// it was about to remove or had just created.
func (a *Archive) cutOff() error {
	known := map[uint32]fileRecord{}
	if err := a.view(func(tx *bolt.Tx) (err error) {
		known, err = loadFiles(tx)
		return err
	}); err != nil {
		return err
	}
	found, err := a.files.list()
	if err != nil {
		return err
	}
	for _, id := range found {
		record, ok := known[id]
		delete(known, id)
		if !ok {
			err = a.files.remove(id)
		} else {
			err = a.files.truncate(id, record.end)
		}
		if err != nil {
			return err
		}
	}
	for id := range known { // its blocks are damaged, and cost their own events
		a.log.Error("a file of archive/ is missing", "file", a.files.path(id))
	}
	return nil
}

// Dir returns the archive's directory.
func (a *Archive) Dir() string { return a.dir }

// Boundary returns the number of a chunk of the journal: the archive has all events up to it, and none after it.
func (a *Archive) Boundary() uint64 { return a.boundary.Load() }

// view runs a read-only transaction of the directory. Damage of the file becomes an error.
func (a *Archive) view(do func(tx *bolt.Tx) error) error {
	return boltfile.CatchDamage(directoryName, func() error { return a.db.View(do) })
}

// update changes the directory. The caller holds writing, and has synced the pack files.
func (a *Archive) update(do func(tx *bolt.Tx) error) error {
	return boltfile.CatchDamage(directoryName, func() error { return a.db.Update(do) })
}

// Close closes the files. No other method may run or be called.
func (a *Archive) Close() error {
	a.coder.close()
	return errors.Join(a.db.Close(), a.files.close())
}

// fail notes the error of a write, and returns it. When the disk is only full, a later write may succeed.
func (a *Archive) fail(err error) error {
	if err == nil || isFull(err) || errors.Is(err, context.Canceled) {
		return err
	}
	a.failed = fmt.Errorf("a write to %s failed, and no more are tried: %w", a.dir, err)
	return a.failed
}
