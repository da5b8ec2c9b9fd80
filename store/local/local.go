// Package local is the embedded engine: control data and the index of the events in bbolt, events and identities in
// Badger, in one data directory.
//
//	DIR/control.db  partners, keys, merchants, tags: control.go says how
//	DIR/events/     Badger: events, identity links, event_id marks
//	DIR/index.db    bbolt: the index of the events, made anew from them when it is not there; stored.go says how
//
// # The way of a mark
//
// Record queues the mark; the committer (committer.go, group.go) resolves, links and deduplicates
// what waits and writes it as one synced transaction; Record returns. The index (index.go) takes
// the events up in memory, a moment later and in the same order, and every few seconds merges them
// into the stored trees (merge.go, tree.go, stored.go, series.go). A listing (query.go, reader.go, slice.go) waits
// for that moment, so that it sees every event that was acknowledged before it.
//
// # What is in Badger
//
// Integers in keys are big endian. A merchant is the 16 bytes of its UUID. A seq numbers chunks and
// commits (clock.go); the commit timestamps are seqs too. A key's newest version counts, the others are
// garbage.
//
//	'F'                                 format version, in ASCII digits
//	'A' seq (8 bytes)                   chunk of events: an S2 block (chunk.go)
//	'L' merchant, identifier (32)       identity link: the muid. The identifier is the SHA-256 of a
//	                                    byte for its kind (store.IdentifierKind) and its normalised value
//	'D' merchant, event_id (16)         event_id mark: time of receipt, µs since 1970 (8 bytes, big endian),
//	                                    under the first 16 bytes of the event_id's SHA-256
package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"time"

	"github.com/dgraph-io/badger/v4"

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

// Open opens or creates the engine in dir. It fails with store.ErrInUse when another process has it open.
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
	db, err := openBadger(filepath.Join(dir, "events"), log)
	if err != nil {
		return err
	}
	x, err := openIndex(filepath.Join(dir, "index.db"), db, opt.Log)
	if err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", dir, err), db.Close())
	}
	go x.run()
	e.db, e.index = db, x
	e.disk = watchDisk(dir, opt.Log)
	e.committer = newCommitter(db, log, &clock{now: opt.Now, last: db.MaxVersion()}, x, e.accepts)
	return nil
}

// Record implements store.Events.
func (e *Engine) Record(ctx context.Context, marks []store.Mark) error {
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
	return e.committer.submit(ctx, request{marks: marks})
}

// Resolve implements store.Events.
func (e *Engine) Resolve(ctx context.Context, merchant store.MerchantID, id store.Identity) (store.MUID, error) {
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
		return id.MUID, e.committer.submit(ctx, request{link: &link{m, id}})
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
	return errors.Join(err, e.db.Close(), e.Control.Close())
}
