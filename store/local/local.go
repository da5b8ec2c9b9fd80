// Package local is the embedded engine: control data in bbolt, events and identities in Badger, in
// one data directory.
//
//	DIR/control.db  partners, keys, merchants, tags: control.go says how
//	DIR/events/     Badger: events, identity links, event_id marks
//	DIR/index/      Badger: the index of the events; made anew from them when it is not there
//
// # The way of a mark
//
// Record queues the mark; the committer (committer.go, group.go) resolves, links and deduplicates
// what waits and writes it as one synced transaction; Record returns. The index (index.go) takes
// the events up in memory, a moment later and in the same order, and every few seconds merges them
// into the stored trees (merge.go, tree.go, root.go). A listing (query.go, reader.go, slice.go) waits for that moment, so
// that it sees every event that was acknowledged before it.
//
// # What is in Badger
//
// Integers in keys are big endian. A merchant is the 16 bytes of its UUID. A seq numbers chunks and
// commits (clock.go); the commit timestamps are seqs too. A key's newest version counts, the others are
// garbage. In both databases:
//
//	'F'                                 format version, in ASCII digits
//
// In events/:
//
//	'A' seq (8 bytes)                   chunk of events: an S2 block (chunk.go)
//	'L' merchant, identifier (32)       identity link: the muid. The identifier is the SHA-256 of a
//	                                    byte for its kind (store.IdentifierKind) and its normalised value
//	'D' merchant, event_id (16)         event_id mark: time of receipt, µs since 1970 (8 bytes, big endian),
//	                                    under the first 16 bytes of the event_id's SHA-256
//
// In index/:
//
//	'B' node id (8 bytes), merchant     node of the merchant's stored tree (tree.go), or a list of nodes to
//	                                    delete (root.go)
//	'R' merchant                        root record of that tree (root.go)
//	'C'                                 seq up to which the stored trees cover the chunks (8 bytes, big endian)
package local

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"mtagd/store"
)

// Options are an engine's inputs beside its directory.
type Options struct {
	Log *slog.Logger     // nil: slog.Default
	Now func() time.Time // nil: time.Now
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// Engine implements store.Engine.
type Engine struct {
	*Control
	db        *badger.DB // events/
	index     *index
	committer *committer
	disk      *diskWatch
}

var _ store.Engine = (*Engine)(nil)

// Open opens or creates the engine in dir. It fails with ErrInUse when another process has it open.
func Open(dir string, opt Options) (store.Engine, error) {
	opt = opt.withDefaults()
	control, err := OpenControl(dir, opt)
	if err != nil {
		return nil, err
	}
	e := &Engine{Control: control}
	if err := e.openEvents(dir, opt); err != nil {
		return nil, errors.Join(err, control.Close())
	}
	return e, nil
}

func (e *Engine) openEvents(dir string, opt Options) error {
	log := &badgerLog{log: opt.Log}
	db, err := openBadger(eventsOptions(dir), log)
	if err != nil {
		return err
	}
	indexDB, err := openBadger(indexOptions(dir), &badgerLog{log: opt.Log})
	if err != nil {
		return errors.Join(err, db.Close())
	}
	clock := &clock{now: opt.Now, last: max(db.MaxVersion(), indexDB.MaxVersion())}
	x, err := openIndex(indexDB, db, clock)
	if err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", dir, err), indexDB.Close(), db.Close())
	}
	e.db, e.index = db, x
	e.disk = watchDisk(dir, opt.Log)
	e.committer = newCommitter(db, log, clock, x, e.accepts)
	return nil
}

// openBadger opens or creates one of the two databases.
func openBadger(opt badger.Options, log *badgerLog) (*badger.DB, error) {
	if err := mendLogs(opt.Dir); err != nil {
		return nil, fmt.Errorf("open %s: %w", opt.Dir, err)
	}
	db, err := badger.OpenManaged(opt.WithLogger(log))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", opt.Dir, err)
	}
	// Nobody reads the past. Until it is told so, a managed database keeps all that was ever replaced,
	// deleted or expired.
	db.SetDiscardTs(math.MaxUint64)
	err = log.failure()
	if err == nil {
		err = checkFormat(db)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", opt.Dir, err), db.Close())
	}
	return db, nil
}

// commonOptions suit two cores and half a gigabyte. The reasons:
//   - SyncWrites: db.Sync would leave out what a rotation of the memtable has just sealed.
//   - Conflicts cannot happen: the committer alone writes events/, the index alone index/.
//   - Memtables are small: a flush, and a compaction of level 0, is work that answers wait for, so it comes
//     in short bursts. Level 0 may hold more of the small tables before writes are stalled.
//   - What is in the tables is compact or does not compress, so that blocks need neither compression nor a cache: they
//     are read where they lie in the mapped file.
func commonOptions(dir string) badger.Options {
	return badger.DefaultOptions(dir).
		WithSyncWrites(true).
		WithDetectConflicts(false).
		WithMetricsEnabled(false).
		WithMemTableSize(4 << 20).
		WithNumMemtables(3).
		WithNumCompactors(2).
		WithNumLevelZeroTablesStall(32).
		WithBlockCacheSize(0).
		WithCompression(options.None).
		WithNumVersionsToKeep(1)
}

// eventsOptions put chunks into the value log, all but the smallest: there they are written once, while what is in the
// tables is written again by each compaction that passes it. Chunks are never deleted, so the value log is never
// collected. Links and marks stay below the threshold. The checksum makes an error of a chunk that the disk
// has damaged.
func eventsOptions(dir string) badger.Options {
	return commonOptions(filepath.Join(dir, "events")).
		WithValueThreshold(300).
		WithValueLogFileSize(64 << 20).
		WithVerifyValueChecksum(true)
}

// indexOptions keep nodes in the tables, where compactions drop those that were replaced. The largest is below 500 KB,
// so the value log stays empty. A merge's nodes are compacted with few others, so it is done soon, in small steps.
func indexOptions(dir string) badger.Options {
	return commonOptions(filepath.Join(dir, "index")).
		WithNumLevelZeroTables(2).
		WithValueThreshold(512 << 10).
		WithValueLogFileSize(1 << 20)
}

// checkFormat writes the format version into a new database and refuses one of another version.
func checkFormat(db *badger.DB) error {
	txn := db.NewTransactionAt(math.MaxUint64, true)
	defer txn.Discard()
	key := []byte{prefixFormat}
	found, err := lookup(txn, key, func(b []byte) error {
		if string(b) != formatVersion {
			return fmt.Errorf("format %q is not known to this version, which reads %q", b, formatVersion)
		}
		return nil
	})
	if err != nil || found {
		return err
	}
	if err := txn.Set(key, []byte(formatVersion)); err != nil {
		return err
	}
	return txn.CommitAt(1, nil)
}

// Record implements store.Events.
func (e *Engine) Record(marks []store.Mark) error {
	if len(marks) == 0 {
		return nil
	}
	for i := range marks {
		if _, err := newMerchantKey(marks[i].Merchant); err != nil {
			return err
		}
		if err := checkMUID(marks[i].Identity.MUID); err != nil {
			return err
		}
	}
	return e.committer.submit(request{marks: marks})
}

// Resolve implements store.Events.
func (e *Engine) Resolve(merchant store.MerchantID, id store.Identity) (store.MUID, error) {
	m, err := newMerchantKey(merchant)
	if err != nil {
		return "", err
	}
	if err := checkMUID(id.MUID); err != nil {
		return "", err
	}
	if id.MUID != "" {
		if len(id.Keys()) == 0 {
			return id.MUID, nil
		}
		return id.MUID, e.committer.submit(request{link: &link{m, id}})
	}
	txn := e.db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	return resolve(txn, m, &id)
}

func checkMUID(id store.MUID) error {
	if len(id) > store.MaxMUIDLength {
		return store.Invalid("muid", "must have at most %d bytes", store.MaxMUIDLength)
	}
	return nil
}

// Ready implements store.Engine.
func (e *Engine) Ready() error {
	if _, failed := e.committer.state(); failed != nil {
		return fmt.Errorf("a write failed: %w", failed)
	}
	return e.accepts()
}

// accepts tells why no marks can be taken at the moment, beside what the committer knows itself.
func (e *Engine) accepts() error {
	if err := e.index.failure(); err != nil {
		return store.Unavailable("the event index failed")
	}
	return e.disk.ready()
}

// Close implements store.Engine.
func (e *Engine) Close() error {
	e.committer.close()
	err := e.index.close()
	e.disk.close()
	return errors.Join(err, e.index.db.Close(), e.db.Close(), e.Control.Close())
}

// badgerLog passes Badger's messages on, and notices the errors that Badger goes on after but we must not.
type badgerLog struct {
	log    *slog.Logger
	failed atomic.Pointer[string] // what failed first
}

// ignoredErrors are what Badger's messages begin with and what they mean.
var ignoredErrors = map[string]string{
	// Events that were acknowledged would be gone without a word.
	"Ignoring table": "a table is corrupt",
	// Chunks would be acknowledged that are not on disk.
	"Error while curlf sync": "the value log cannot be synced",
}

func (l *badgerLog) Errorf(format string, args ...any) {
	for prefix, meaning := range ignoredErrors {
		if strings.HasPrefix(format, prefix) {
			l.failed.CompareAndSwap(nil, &meaning)
		}
	}
	l.log.Error("badger: " + strings.TrimSpace(fmt.Sprintf(format, args...)))
}

// failure is the first of the ignored errors, or nil.
func (l *badgerLog) failure() error {
	if meaning := l.failed.Load(); meaning != nil {
		return errors.New(*meaning)
	}
	return nil
}

func (l *badgerLog) Warningf(format string, args ...any) {
	l.log.Warn("badger: " + strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (l *badgerLog) Infof(format string, args ...any) {
	l.log.Debug("badger: " + strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (l *badgerLog) Debugf(string, ...any) {}
