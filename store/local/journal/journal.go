// Package journal stores what the embedded engine must have on disk before it acknowledges an event: the event, its
// identity links and its event_id. It appends that to a log, one record for a group of requests. Links and event_ids move
// from there to a database, and events to the archive. The journal does not know the archive, nor the index: a callback gets
// the events of each record.
//
// # How an event is recorded
//
//  1. Record puts its marks into the queue. (package groupcommit)
//  2. The committer, one goroutine, begins a group when enough marks wait or have waited long enough. The merchants that
//     wait take turns in the group, so that the batches of one do not delay the others. (committer.go, package groupcommit)
//  3. It resolves, deduplicates and links the group's marks one by one, and appends their events to chunks. All that goes
//     into one record of the log, or several for a large group. (transaction.go, chunk.go)
//  4. The log syncs. Then the committer passes the events to the callback. Record returns when all of its marks are on
//     disk, which may take several groups.
//
// After a failed write the events of the group are refused. The next group is written to a new file of the log (package
// log).
//
// # Where things are
//
// Chunks are in the log until Forget drops them, the newest ones in memory too (chunks.go). Links and event_ids are in
// memory and in the log, until a flush writes them to the database (keystore.go, forget.go). A file of the log goes when
// nothing in it is needed. So a start reads only what was not archived or flushed.
//
// Files in reading order:
//
//	journal.go      Journal: open, record, resolve, close
//	committer.go    writes group after group; numbers chunks and commits
//	transaction.go  puts marks into a record
//	links.go        identity links
//	chunks.go       the chunks of the log
//	keystore.go     links and event_ids, in memory and in the database
//	entries.go      those in memory
//	read.go         reads events by position, and chunks in the order of receipt
//	refill.go       writes links and event_ids again that damage has cost
//	checkpoint.go   where a start begins to read the log
//	forget.go       drops chunks, flushes links and event_ids, and removes files of the log (tidy)
//	remove.go       removes links and remembered event_ids, and their bytes
//	snapshot.go     the journal as of one commit, and what the last commits have written, for a backup
//	restore.go      writes a journal from a backup, or from what can be read of damaged files
//	migrate.go      reads links and remembered event_ids for another engine, or writes those of one; pauses
//	chunk.go        the byte form of events
//	keys.go         the keys of entries
//	disk.go         counts what events take of the disk, and refuses them before it is full
//	verify.go       checks all data
//
// # The files
//
//	log/   the log (package log)
//	keys/  the database (package badgerdb)
//	checkpoint  the chunks in the older part of the log, for a start (checkpoint.go)
//
// # Entries
//
// A record of the log is a list of entries (codec.AppendEntry). Integers in keys are big endian. A merchant is the 16 bytes
// of its UUID. A seq is the number of a chunk; versions of commits are from the same sequence (clock). Only the newest
// entry of a key counts. All entries but chunks are also those of the database, which is of format "6".
//
//	'F'                                 format version, in ASCII digits; only in the database
//	'B'                                 seq (8 bytes): chunks up to it may have been dropped (Forget)
//	'C'                                 position in the log (8 bytes), and the checksum of the record before it (4 bytes): links
//	                                    and event_ids of the records before it are in the database; only in the database
//	'A' seq (8 bytes)                   chunk of events: an S2 block (chunk.go)
//	'L' merchant, identifier (32)       identity link: a byte 255, its source, the number of former links of each source,
//	                                    and the muid. The identifier is the SHA-256 of a byte for its kind
//	                                    (store.IdentifierKind) and its normalised value
//	'H' merchant, identifier (32), muid (16)
//	                                    former link of an identifier: its source and the muid. The 16 bytes are the
//	                                    first ones of store.MUIDKey
//	'U' merchant, muid (16)             1: an identifier was linked to this muid
//	'E' merchant, name and event_id (16)
//	                                    remembered event_id: time of receipt, µs since 1970 (8 bytes, big endian). The
//	                                    16 bytes are store.RememberedKey. The database drops the key 8 days after a flush
package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
	"mtagd/store/groupcommit"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
	"mtagd/store/local/log"
)

// Format is the version of the directory's layout.
const Format = "6"

// Options are a journal's inputs besides its directory. Log and Now are required.
type Options struct {
	Log *slog.Logger
	Now func() time.Time

	// Refuses returns the outcome of a mark that is refused, because of its person or its merchant, else 0; nil: none are.
	// It is called for each mark, with its muid.
	Refuses func(m store.MerchantID, id *store.Identity, muid store.MUID) store.Outcome

	// Rebuilding is called when damaged links and event_ids were rebuilt, before that counts: what was removed may be back.
	// It gets all ranges of lost keys, those of Lost included; nil: nothing is called.
	Rebuilding func(lost []badgerdb.Range) error

	// Lost has the ranges of keys that damage has cost: a look-up there that finds nothing is KindUnavailable, until
	// Refilled.
	Lost []badgerdb.Range

	// Pace returns what background work on the database calls between pieces of work, to pause; nil: no pauses.
	Pace func() func()
}

// Journal records events, once Start has been called.
type Journal struct {
	groupcommit.Recorder // from Start on

	dir      string
	opt      Options
	log      *log.Log
	keys     *keyStore
	chunks   chunks
	lost     DamagedChunks // damage that was found in the log, each as the chunk after the last sound one
	endsLost bool          // no chunk is behind the last one
	readOnly bool

	maxEntries int // the constant, except in a test

	last    uint64        // the greatest number of a chunk or a commit, before Start
	flushed atomic.Uint64 // links and event_ids of records before this position are in the database

	flushes    sync.Mutex  // held during a flush
	compacting atomic.Bool // the database is being compacted
	copying    sync.Mutex  // held while files of the log are removed
	copies     int         // who reads what must not be removed: snapshots that are open, and KeepLog; guarded by copying
	recent     sync.Mutex
	moments    []moment // commits since which Recent can answer; guarded by recent

	// Nil until Start.
	disk      *diskWatch
	committer *committer
	stopping  context.Context // ends when Close begins
	stop      context.CancelFunc
	running   sync.WaitGroup // tidy, merge and filter
}

func logDir(dir string) string  { return filepath.Join(dir, "log") }
func keysDir(dir string) string { return filepath.Join(dir, "keys") }

// Open opens or creates the journal in dir. Nothing can be recorded before Start.
func Open(dir string, opt Options) (*Journal, error) {
	if err := os.MkdirAll(logDir(dir), 0o700); err != nil {
		return nil, err
	}
	if opt.Pace == nil {
		opt.Pace = func() func() { return func() {} }
	}
	if opt.Rebuilding == nil {
		opt.Rebuilding = func([]badgerdb.Range) error { return nil }
	}
	j := &Journal{dir: dir, opt: opt, maxEntries: maxEntries}
	var err error
	if j.log, err = log.Open(logDir(dir), opt.Log); err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	if _, err := os.Stat(keysDir(dir)); errors.Is(err, fs.ErrNotExist) && j.log.First() > 0 {
		return nil, errors.Join(fmt.Errorf("open %s: keys/ is missing: the links and event_ids are in it. Nothing was changed", dir), j.log.Close())
	}
	if j.keys, err = openKeys(keysDir(dir), opt.Log, opt.Lost, opt.Rebuilding); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", dir, err), j.log.Close())
	}
	if err := errors.Join(j.replay(), durable.SyncPath(dir)); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", dir, err), j.keys.db.Close(), j.log.Close())
	}
	return j, nil
}

// replay reads the log. The records behind damage count: an entry of a key is right whatever came before.
func (j *Journal) replay() error {
	j.chunks.log = j.log
	j.last = j.keys.db.MaxVersion()
	j.flushed.Store(uint64(j.log.First()))
	forgotten, err := j.Forgotten()
	if err != nil {
		return err
	}
	flushed, err := j.keys.flushedUpTo()
	if err != nil {
		return err
	}
	if flushed.fits(j.log) {
		j.flushed.Store(uint64(flushed.at))
	}
	from := j.log.First()
	if !j.readOnly { // verify and repair read all records
		if at, ok := j.readCheckpoint(flushed.at, forgotten); ok {
			from = at
		}
	}
	var written []stored // reused from record to record
	for endKnown := false; ; {
		err := j.log.Replay(from, func(at log.Position, record []byte) (err error) {
			written, err = j.replayRecord(at, record, written[:0])
			return err
		})
		if err == nil && flushed.at > j.log.End() && !endKnown { // a log without its last files is sound, but ends early
			endKnown, err = true, j.log.Replay(flushed.at, nil)
		}
		damage, isDamage := errors.AsType[*log.Damage](err)
		if !isDamage {
			if err != nil {
				return err
			}
			if forgotten, err = j.Forgotten(); err == nil {
				j.chunks.forget(forgotten)
				j.last = max(j.last, forgotten)
			}
			return err
		}
		j.opt.Log.Error("a part of the log of events is damaged: its events are lost, all others are served",
			"file", damage.File, "offset", damage.Offset, "reason", damage.Err, "records", damage.Lost)
		seq := max(j.chunks.last(math.MaxUint64), forgotten) + 1
		j.lost = append(j.lost, DamagedChunk{seq, damage})
		j.last, j.endsLost = max(j.last, seq), true
		from = min(damage.Next, j.log.End())
	}
}

// replayRecord takes in the entries of a record. It appends the chunks among them to written, which is empty.
func (j *Journal) replayRecord(at log.Position, record []byte, written []stored) ([]stored, error) {
	if err := eachEntry(record, func(e codec.Entry, to int) error {
		j.last = max(j.last, e.Version)
		if seq, isChunk := ChunkOf(e); isChunk {
			j.last = max(j.last, seq)
			written = append(written, stored{seq: seq, version: e.Version, at: at, from: to - len(e.Value), to: to})
		} else if uint64(at) >= j.flushed.Load() { // what the database has may be newer, when a record between is damaged
			j.keys.set(e)
		}
		return nil
	}); err != nil {
		return written, err
	}
	j.chunks.add(written)
	j.endsLost = j.endsLost && len(written) == 0
	j.keys.end(true)
	return written, nil
}

// HasLost reports whether a part of the log could not be read when it was opened.
func (j *Journal) HasLost() bool { return len(j.lost) > 0 }

// LostUpTo notes that the log had chunks up to seq, if it ends with damage: the chunks behind the last sound one are lost.
// It returns false if the log does not end with damage.
func (j *Journal) LostUpTo(seq uint64) bool {
	if j.endsLost {
		j.lost[len(j.lost)-1].Seq = seq
		j.last = max(j.last, seq)
	}
	return j.endsLost
}

// eachEntry calls use with the entries of a record; to is where the value ends. An entry is valid as long as the record.
func eachEntry(record []byte, use func(e codec.Entry, to int) error) error {
	d := codec.Decoder{B: record}
	for len(d.B) > 0 {
		e := d.Entry()
		if err := d.Err("record of the log"); err != nil {
			return err
		}
		if err := use(e, len(record)-len(d.B)-codec.EntryTrailerSize(e)); err != nil {
			return err
		}
	}
	return nil
}

// Start lets the journal record events. It passes the events of each commit to handOver. While ready returns an error,
// Record and Resolve refuse what they would have to write, with that error.
func (j *Journal) Start(ready func() error, handOver HandOver) error {
	last, err := j.LastChunk()
	if err != nil {
		return err
	}
	j.disk = watchDisk(j.dir, j.opt.Log)
	q := groupcommit.New(func(size int) error {
		if err := ready(); err != nil {
			return err
		}
		if j.keys.inMemory() > j.maxEntries {
			return store.Unavailable("links and event_ids cannot be stored now")
		}
		return j.disk.admit(size)
	}, j.disk.finish)
	j.committer = &committer{
		j: j, clock: &clock{now: j.opt.Now, last: j.last}, queue: q, handOver: handOver, arenas: newArenas(),
		metrics: groupcommit.NewMetrics(), done: make(chan struct{}),
	}
	j.Recorder = groupcommit.Recorder{Queue: q, Linked: func(_ context.Context, m store.MerchantKey, id *store.Identity) (store.MUID, error) {
		found, err := resolve(j.keys.get, m, id)
		return store.MUID(found.muid), err
	}}
	j.committer.committed.Store(last)
	j.committer.version.Store(j.last)
	j.stopping, j.stop = context.WithCancel(context.Background())
	go j.committer.run()
	j.running.Go(j.tidy)
	j.running.Go(j.filter)
	return nil
}

// LastChunk returns the number of the last chunk on disk; 0: there was none. Unlike Committed, it may come before Start.
func (j *Journal) LastChunk() (seq uint64, err error) { return j.LastChunkAt(math.MaxUint64) }

// LastChunkAt returns the number of the last chunk that was on disk after the commit with this version.
func (j *Journal) LastChunkAt(version uint64) (seq uint64, err error) {
	forgotten, err := j.Forgotten() // all chunks may have been dropped
	last := max(j.chunks.last(version), forgotten)
	if j.endsLost {
		last = max(last, j.lost[len(j.lost)-1].Seq)
	}
	return last, err
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

// Failure returns the error of the last commit, or nil.
func (j *Journal) Failure() error {
	if err := j.committer.failed.Load(); err != nil {
		return fmt.Errorf("a write to %s failed. Check the disk: %w", j.dir, *err)
	}
	return nil
}

// FreeSpace implements store.Engine.
func (j *Journal) FreeSpace() uint64 { return j.disk.freeForEvents() }

// Metrics returns the journal's metrics. Call it after Start.
func (j *Journal) Metrics() []prometheus.Collector {
	return j.committer.metrics.Collectors(j.committer.queue)
}

// Drain refuses new requests, and returns when all accepted ones are finished. Events can still be read.
func (j *Journal) Drain() {
	j.committer.queue.Close()
	<-j.committer.done
}

// Close closes the files. A journal that was started must have been drained.
func (j *Journal) Close() error {
	var err error
	if j.committer != nil {
		j.stop()
		j.running.Wait()
		j.disk.close()
		err = j.flush() // for a quick start
		if badgerdb.IsNearlyFull(err) {
			err = nil // it is in the log
		}
	}
	return errors.Join(err, j.keys.db.Close(), j.log.Close())
}

// Version returns the number of the last commit, from Start on. All commits up to it are complete.
func (j *Journal) Version() uint64 { return j.committer.version.Load() }
