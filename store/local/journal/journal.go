// Package journal is what the embedded engine writes when an event arrives: events, identity links and event_id marks,
// in Badger. It commits in groups, and reads events by their positions. It knows no index: whoever needs one is
// handed the events of each commit.
//
// # How an event is recorded
//
//  1. Record puts its marks into the queue. They join the group that is gathering. (queue.go)
//  2. The committer, one goroutine, takes the group when it is due. (committer.go)
//  3. It resolves, deduplicates and links the marks one by one, and appends their events to chunks. All that goes into
//     one Badger transaction, or several for a large group. (transaction.go, chunk.go)
//  4. The commit syncs. Then the committer hands the events to its callback, and Record returns.
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
//	badger.go       Badger's options, format version and log
//	disk.go         stops writes while the disk is nearly full
//	logs.go         Badger's log files: repair before opening, no readahead
//
// # What is in Badger
//
// The directory is of format "3". Integers in keys are big endian. A merchant is the 16 bytes of its UUID. A seq
// numbers chunks and commits (clock.go); commit timestamps are seqs too. Only the newest version of a key counts.
//
//	'F'                                 format version, in ASCII digits
//	'A' seq (8 bytes)                   chunk of events: an S2 block (chunk.go)
//	'L' merchant, identifier (32)       identity link: the muid. The identifier is the SHA-256 of a
//	                                    byte for its kind (store.IdentifierKind) and its normalised value
//	'D' merchant, event_id (16)         event_id mark: time of receipt, µs since 1970 (8 bytes, big endian),
//	                                    under the first 16 bytes of the event_id's SHA-256
package journal

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// Options are a journal's inputs beside its directory. All are required.
type Options struct {
	Log *slog.Logger
	Now func() time.Time
}

// Journal implements Record and Resolve of store.Events.
type Journal struct {
	db   *badger.DB
	log  *badgerLog
	now  func() time.Time
	disk *diskWatch

	committer *committer // nil until Start
}

// Open opens or creates the journal in dir. Nothing can be recorded before Start.
func Open(dir string, opt Options) (*Journal, error) {
	log := &badgerLog{log: opt.Log}
	db, err := openBadger(dir, log)
	if err != nil {
		return nil, err
	}
	return &Journal{db: db, log: log, now: opt.Now, disk: watchDisk(dir, opt.Log)}, nil
}

// Start lets the journal record events. It hands the events of each commit to committed. While accepts returns an
// error, nothing is accepted.
func (j *Journal) Start(accepts func() error, committed Committed) error {
	last, err := lastChunk(j.db)
	if err != nil {
		return err
	}
	q := newQueue(func() error {
		if err := accepts(); err != nil {
			return err
		}
		return j.disk.ready()
	})
	j.committer = startCommitter(j.db, j.log, &clock{now: j.now, last: j.db.MaxVersion()}, q, last, committed)
	return nil
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

// Read calls use with each of the wanted events and its number, in the order of their positions. It sorts wanted. The
// event is valid until use returns. When ctx ends, Read stops before the next chunk and returns ctx's error.
func (j *Journal) Read(ctx context.Context, wanted []Wanted, use func(n int, e Event)) error {
	return readWanted(ctx, j.db, wanted, use)
}

// Since calls use with the events of each chunk after the chunk seq, in the order of receipt; last is the number of
// their chunk. The events are valid until use returns.
func (j *Journal) Since(seq uint64, use func(events []codec.Event, last uint64) error) error {
	return readSince(j.db, seq, use)
}

// HasChunk reports whether a chunk is in the journal.
func (j *Journal) HasChunk(seq uint64) (bool, error) { return hasChunk(j.db, seq) }

// Committed returns the number of the last chunk on disk; 0 when there is none.
func (j *Journal) Committed() uint64 { return j.committer.committed.Load() }

// Ready returns nil while events are accepted, else the reason why not.
func (j *Journal) Ready() error {
	if err := j.committer.queue.failure(); err != nil {
		return fmt.Errorf("a write failed: %w", err)
	}
	return j.committer.queue.ready()
}

// Drain stops accepting, and finishes what was accepted. Events can still be read.
func (j *Journal) Drain() { j.committer.drain() }

// Close closes the files. A journal that was started must have been drained.
func (j *Journal) Close() error {
	j.disk.close()
	return j.db.Close()
}
