// Package journal stores what the embedded engine must have on disk before it acknowledges an event: the event, its
// identity links and its event_id. It writes to Badger, one commit for a group of requests, and reads events by their
// positions. It does not know the index: a callback gets the events of each commit.
//
// # How an event is recorded
//
//  1. Record puts its marks into the queue. (package group)
//  2. The committer, one goroutine, begins a group when enough marks wait or have waited long enough. The merchants that
//     wait take turns in the group, so that the batches of one do not delay the others. (committer.go, package group)
//  3. It resolves, deduplicates and links the group's marks one by one, and appends their events to chunks. All that goes
//     into one Badger transaction, or several for a large group. (transaction.go, chunk.go)
//  4. The commit syncs. Then the committer passes the events to the callback. Record returns when all of its marks are on
//     disk, which may take several groups.
//
// Files in reading order:
//
//	journal.go      Journal: open, record, resolve, close
//	committer.go    writes group after group
//	transaction.go  puts marks into a Badger transaction
//	arena.go        the memory of one transaction
//	read.go         reads events by position, and all events since a position
//	scan.go         reads whole chunks in the order of receipt
//	forget.go       reads chunks for the archive, and deletes them when it has their events
//	reclaim.go      removes value logs that have only deleted chunks
//	remove.go       reads and removes links and remembered event_ids
//	purge.go        removes what was deleted from the files
//	damaged.go      chunks that cannot be read
//	snapshot.go     the journal as of one commit, for a backup
//	tap.go          remembers what the last commits have written, for a backup every few seconds
//	restore.go      writes a journal from a backup
//	move.go         reads links and remembered event_ids for another engine, or writes those of one; pauses
//	prefetch.go     loads neighbouring chunks before they are read
//	chunk.go        the byte form of events
//	keys.go         the keys in Badger
//	clock.go        numbers chunks and commits
//	badger.go       Badger's options, its messages, the format version
//	database.go     a Badger database for other packages: the archive
//	precheck.go     checks and corrects Badger's files before Badger opens them
//	closed.go       notes a clean stop, after which the tables need no full check
//	setaside.go     copies damaged files before they are changed; writes files again
//	manifest.go     lists the tables anew
//	tablefile.go    checks a table
//	memlog.go       reads the log of a memtable, also behind damage
//	bitflip.go      corrects a single wrong bit
//	tableerrors.go  errors of tables that Badger ignores
//	logs.go         Badger's log files: repair before opening, no readahead
//	disk.go         counts what events take of the disk, and refuses them before it is full
//	mmap.go         finds the files that Badger maps
//	allocate.go     allocates them before Badger writes to them
//	spare.go        a file whose space is given back on a full disk
//	verify.go       checks all data
//	salvage.go      writes what can be read of damaged files into a new journal
//
// # The files
//
// NNNNNN.sst are Badger's tables (tablefile.go), NNNNNN.vlog its value logs and NNNNN.mem the logs of its memtables
// (memlog.go). MANIFEST lists the tables (manifest.go). KEYREGISTRY and DISCARD have nothing that is needed (precheck.go),
// LOCK is Badger's lock. spare only takes space (spare.go). closed is there after a clean stop (closed.go).
//
// # What is in Badger
//
// The directory is of format "5". Integers in keys are big endian. A merchant is the 16 bytes of its UUID. A seq is the
// number of a chunk; Badger's commit timestamps are from the same sequence (clock.go). Only the newest version of a key
// counts.
//
//	'F'                                 format version, in ASCII digits
//	'B'                                 seq (8 bytes): chunks up to it may have been deleted (Forget)
//	'A' seq (8 bytes)                   chunk of events: an S2 block (chunk.go)
//	'L' merchant, identifier (32)       identity link: a byte 255, its source, how many former links of each source there are, and
//	                                    the muid; or the muid alone. The identifier is the SHA-256 of a byte for its kind
//	                                    (store.IdentifierKind) and its normalised value
//	'H' merchant, identifier (32), muid (16)
//	                                    former link of an identifier: its source and the muid. The 16 bytes are the first ones of
//	                                    store.MUIDKey
//	'U' merchant, muid (16)             1: an identifier was linked to this muid
//	'V'                                 1: all muids with links have an 'U'
//	'E' merchant, name and event_id (16)
//	                                    remembered event_id: time of receipt, µs since 1970 (8 bytes, big endian). The
//	                                    16 bytes are the first ones of the SHA-256 of the event's name, a zero byte, and
//	                                    the event_id. Badger drops the key 8 days after receipt
//	'Z' …                               filler, which Purge writes and deletes
//	'D' merchant, event_id (16)         the same from earlier versions, which hashed the event_id alone: it counts for
//	                                    events of any name. It is no longer written, and read only when Start finds one
package journal

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
	"mtagd/store/group"
	"mtagd/store/local/codec"
	"mtagd/store/local/space"
)

// Options are a journal's inputs besides its directory. Log and Now are required.
type Options struct {
	Log *slog.Logger
	Now func() time.Time

	// Suppressed reports whether marks of a person are refused; nil: none are. It is called for each mark, with its muid.
	Suppressed func(m store.MerchantID, id *store.Identity, muid store.MUID) bool
}

// Journal implements Record and Resolve of store.Events.
type Journal struct {
	dir string
	db  *badger.DB
	log *badgerLog
	now func() time.Time

	suppressed func(m store.MerchantID, id *store.Identity, muid store.MUID) bool

	files *allocator

	shadow string // of OpenReadOnly

	collecting sync.Mutex // held while value logs are removed
	snapshots  int        // that are open; guarded by collecting

	// Nil until Start.
	indexing struct { // links of an earlier version
		sync.WaitGroup
		stop context.CancelFunc // nil: nothing was to be done
	}
	disk      *diskWatch // it disables readahead, which Since needs: a replay takes four times as long without
	committer *committer
}

// Open opens or creates the journal in dir. Nothing can be recorded before Start.
func Open(dir string, opt Options) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	files, err := newAllocator(dir, opt.Log)
	if err != nil {
		return nil, err
	}
	return openWith(dir, opt, files)
}

// openWith opens the journal with an allocator, which it closes when it fails.
func openWith(dir string, opt Options, files *allocator) (*Journal, error) {
	log := &badgerLog{log: opt.Log}
	db, err := openBadger(dir, log, files)
	if err != nil {
		files.close()
		return nil, err
	}
	files.opened()
	return &Journal{dir: dir, db: db, log: log, now: opt.Now, suppressed: opt.Suppressed, files: files}, nil
}

// Start lets the journal record events. It passes the events of each commit to handOver. While ready returns an error,
// Record and Resolve refuse what they would have to write, with that error.
func (j *Journal) Start(ready func() error, handOver HandOver) error {
	last, err := j.LastChunk()
	if err != nil {
		return err
	}
	forgotten, err := j.Forgotten()
	if err != nil {
		return err
	}
	last = max(last, forgotten) // all chunks may have been deleted
	j.disk = watchDisk(j.dir, j.files, j.log.log)
	q := group.New(func(size int) error {
		if err := ready(); err != nil {
			return err
		}
		if err := j.files.failure(); err != nil {
			return fmt.Errorf("%w: %w", store.Unavailable("the disk failed"), err)
		}
		return j.disk.admit(size)
	}, j.disk.finish)
	j.committer = startCommitter(j.db, j.log, j.disk, &clock{now: j.now, last: j.db.MaxVersion()}, q, last, handOver, j.suppressed)
	return j.startIndex()
}

// LastChunk returns the number of the last chunk on disk; 0 when there is none. Unlike Committed, it can be called before
// Start.
func (j *Journal) LastChunk() (seq uint64, err error) { return j.LastChunkAt(math.MaxUint64) }

// LastChunkAt returns the number of the last chunk that was on disk after the commit with this version.
func (j *Journal) LastChunkAt(version uint64) (seq uint64, err error) {
	err = catchFault(func() (err error) {
		seq, err = j.lastChunkAt(version)
		return err
	})
	return seq, err
}

func (j *Journal) lastChunkAt(version uint64) (seq uint64, err error) {
	txn := j.db.NewTransactionAt(version, false)
	defer txn.Discard()
	damaged := damagedBlocks.Load()
	it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{prefixChunk}, Reverse: true})
	defer it.Close()
	it.Seek(appendChunkKey(nil, math.MaxUint64))
	if damagedBlocks.Load() != damaged {
		return 0, errDamagedBlock
	}
	if !it.Valid() {
		return 0, nil
	}
	return parseChunkKey(it.Item().Key())
}

// Record implements store.Events.
func (j *Journal) Record(ctx context.Context, marks []store.Mark) error {
	if len(marks) == 0 {
		return ctx.Err()
	}
	var m codec.MerchantKey
	for i := range marks {
		var err error
		if m, err = codec.NewMerchantKey(marks[i].Merchant); err != nil {
			return err
		}
		if err := checkMUID(marks[i].Identity.MUID); err != nil {
			return err
		}
	}
	return j.committer.queue.Record(ctx, uuid.UUID(m), marks)
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
		if err := j.committer.queue.Link(ctx, uuid.UUID(m), &id); err != nil {
			return "", err
		}
		return id.MUID, nil
	}
	txn := j.db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	var found link
	err = catchFault(func() (err error) {
		found, err = resolve(txn, m, &id)
		return err
	})
	return store.MUID(found.muid), err
}

func checkMUID(id store.MUID) error {
	if len(id) > store.MaxMUIDLength {
		return store.Invalid("muid", "must have at most %d bytes", store.MaxMUIDLength)
	}
	return nil
}

// Committed returns the number of the last chunk that was committed; 0 when there was none. Forget may have deleted it.
func (j *Journal) Committed() uint64 { return j.committer.committed.Load() }

// Ready returns nil while events are accepted, else the reason why not, for operators. It does no I/O.
func (j *Journal) Ready() error {
	if err := j.disk.ready(); err != nil {
		return err
	}
	return j.committer.queue.Accepting()
}

// Failure returns the error of a commit that has failed, or nil. After one nothing more is accepted: nobody knows what of
// the commit is on disk.
func (j *Journal) Failure() error {
	if err := j.committer.queue.Failure(); err != nil {
		return fmt.Errorf("a write to %s failed, and no more are accepted. Check the disk before you restart: %w", j.dir, err)
	}
	return nil
}

// FreeSpace implements store.Engine.
func (j *Journal) FreeSpace() uint64 { return j.disk.freeForEvents() }

// Metrics returns the journal's metrics. Call it after Start.
func (j *Journal) Metrics() []prometheus.Collector {
	return j.committer.metrics.Collectors(j.committer.queue)
}

// Drain refuses new requests, and returns when all accepted ones are finished. Events can still be read. It fails when the
// disk is so full that a commit cannot end; then nothing may be closed.
func (j *Journal) Drain() error {
	j.committer.queue.Close()
	return j.files.await(j.committer.done)
}

// Close closes the files. A journal that was started must have been drained. It fails when the disk is so full that Badger
// cannot close; every event is in Badger's logs then, and the next start reads them.
func (j *Journal) Close() error {
	if j.indexing.stop != nil {
		j.indexing.stop()
		j.indexing.Wait()
	}
	if j.disk != nil {
		j.disk.close()
	}
	var err error
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		err = j.db.Close()
	}()
	if err := j.files.await(closed); err != nil {
		return err
	}
	if free, err := space.Free(j.dir); err == nil {
		j.files.spare.fill(free, 0) // for the next start
	}
	if err == nil && j.log.failure() == nil && (j.committer == nil || j.Failure() == nil) && damagedBlocks.Load() == 0 {
		if err := noteClosed(j.dir); err != nil {
			j.log.log.Warn("a clean stop cannot be noted: the next start checks all tables", "error", err)
		}
	}
	j.files.close()
	return err
}
