// Package journal stores what the embedded engine must have on disk before it acknowledges an event: the event, its
// identity links and its event_id. It writes to Badger, one commit for a group of requests, and reads events by their
// positions. It does not know the index: a callback gets the events of each commit.
//
// # How an event is recorded
//
//  1. Record puts its marks into the queue, where they join the newest group. (queue.go)
//  2. The committer, one goroutine, takes a group when it is full or has waited long enough. (committer.go)
//  3. It resolves, deduplicates and links the group's marks one by one, and appends their events to chunks. All that goes
//     into one Badger transaction, or several for a large group. (transaction.go, chunk.go)
//  4. The commit syncs. Then the committer passes the events to the callback, and Record returns.
//
// Files in reading order:
//
//	journal.go      Journal: open, record, resolve, close
//	committer.go    writes group after group
//	queue.go        gathers requests into groups; refuses when too much waits
//	transaction.go  puts marks into a Badger transaction
//	arena.go        the memory of one transaction
//	read.go         reads events by position, and all events since a position
//	prefetch.go     loads neighbouring chunks before they are read
//	chunk.go        the byte form of events
//	keys.go         the keys in Badger
//	clock.go        numbers chunks and commits
//	badger.go       Badger's options, its messages, the format version
//	disk.go         refuses writes while the disk is nearly full
//	logs.go         Badger's log files: repair before opening, no readahead
//
// # What is in Badger
//
// The directory is of format "3". Integers in keys are big endian. A merchant is the 16 bytes of its UUID. A seq is the
// number of a chunk; Badger's commit timestamps are from the same sequence (clock.go). Only the newest version of a key
// counts.
//
//	'F'                                 format version, in ASCII digits
//	'A' seq (8 bytes)                   chunk of events: an S2 block (chunk.go)
//	'L' merchant, identifier (32)       identity link: the muid. The identifier is the SHA-256 of a
//	                                    byte for its kind (store.IdentifierKind) and its normalised value
//	'D' merchant, event_id (16)         remembered event_id: time of receipt, µs since 1970 (8 bytes, big endian).
//	                                    The event_id is the first 16 bytes of its SHA-256
package journal

import (
	"context"
	"log/slog"
	"math"
	"time"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// Options are a journal's inputs besides its directory. All are required.
type Options struct {
	Log *slog.Logger
	Now func() time.Time
}

// Journal implements Record and Resolve of store.Events.
type Journal struct {
	dir string
	db  *badger.DB
	log *badgerLog
	now func() time.Time

	// Nil until Start.
	disk      *diskWatch // it disables readahead, which Since needs: a replay takes four times as long without
	committer *committer
}

// Open opens or creates the journal in dir. Nothing can be recorded before Start.
func Open(dir string, opt Options) (*Journal, error) {
	log := &badgerLog{log: opt.Log}
	db, err := openBadger(dir, log)
	if err != nil {
		return nil, err
	}
	return &Journal{dir: dir, db: db, log: log, now: opt.Now}, nil
}

// Start lets the journal record events. It passes the events of each commit to handOver. While ready returns an error,
// Record and Resolve refuse what they would have to write, with that error.
func (j *Journal) Start(ready func() error, handOver HandOver) error {
	last, err := j.LastChunk()
	if err != nil {
		return err
	}
	j.disk = watchDisk(j.dir, j.log.log)
	q := newQueue(func() error {
		if err := ready(); err != nil {
			return err
		}
		return j.disk.ready()
	})
	j.committer = startCommitter(j.db, j.log, &clock{now: j.now, last: j.db.MaxVersion()}, q, last, handOver)
	return nil
}

// LastChunk returns the number of the last chunk on disk; 0 when there is none. Unlike Committed, it can be called before
// Start.
func (j *Journal) LastChunk() (seq uint64, err error) {
	txn := j.db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{prefixChunk}, Reverse: true})
	defer it.Close()
	if it.Seek(appendChunkKey(nil, math.MaxUint64)); !it.Valid() {
		return 0, nil
	}
	return parseChunkKey(it.Item().Key())
}

// Record implements store.Events.
func (j *Journal) Record(ctx context.Context, marks []store.Mark) error {
	if len(marks) == 0 {
		return ctx.Err()
	}
	for i := range marks {
		if _, err := codec.NewMerchantKey(marks[i].Merchant); err != nil {
			return err
		}
		if err := checkMUID(marks[i].Identity.MUID); err != nil {
			return err
		}
	}
	return j.committer.queue.submit(ctx, request{marks: marks})
}

// Resolve implements store.Events.
func (j *Journal) Resolve(ctx context.Context, merchant store.MerchantID, id store.Identity) (store.MUID, error) {
	m, err := codec.NewMerchantKey(merchant)
	if err != nil {
		return "", err
	}
	if err := checkMUID(id.MUID); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", err
	}
	if id.MUID != "" {
		if len(id.Keys()) == 0 {
			return id.MUID, nil
		}
		if err := j.committer.queue.submit(ctx, request{link: &link{m, id}}); err != nil {
			return "", err
		}
		return id.MUID, nil
	}
	txn := j.db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	return resolve(txn, m, &id)
}

func checkMUID(id store.MUID) error {
	if len(id) > store.MaxMUIDLength {
		return store.Invalid("muid", "must have at most %d bytes", store.MaxMUIDLength)
	}
	return nil
}

// Committed returns the number of the last chunk on disk; 0 when there is none.
func (j *Journal) Committed() uint64 { return j.committer.committed.Load() }

// Ready returns nil while events are accepted, else the reason why not.
func (j *Journal) Ready() error { return j.committer.queue.accepting() }

// Drain refuses new requests, and returns when all accepted ones are finished. Events can still be read.
func (j *Journal) Drain() { j.committer.drain() }

// Close closes the files. A journal that was started must have been drained.
func (j *Journal) Close() error {
	if j.disk != nil {
		j.disk.close()
	}
	return j.db.Close()
}
