package local

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"
	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// index keeps a counted tree (tree.go) for each merchant, in two layers: the stored tree, and in
// memory a tree of the events that came since. It trails the commits: events are committed as
// chunks, acknowledged, and then applied in memory by one goroutine. Every few seconds a merge
// (merge.go) takes what is in memory into the stored trees. What was not merged is applied again from the
// chunks when the engine starts, so a crash loses nothing and counts nothing twice.
type index struct {
	db     *bolt.DB             // index.db
	commit func(*bolt.Tx) error // of what a merge writes; tests let it fail
	log    *slog.Logger

	mu      sync.RWMutex // readers hold it while they walk trees
	recent  map[merchantKey]*recent
	entries int    // in the active trees
	covered uint64 // chunks up to this seq are in the trees

	arenas sync.Pool // *nodeArena, for readers

	queue chan appendix
	done  chan struct{} // closed when the goroutine has ended

	progress sync.Mutex
	advanced sync.Cond // applied or err changed
	applied  uint64    // as covered
	err      error     // why nothing is applied any more
}

// recent is a merchant's events that are not in its stored tree.
type recent struct {
	covered uint64 // as of the stored tree that the index knows of
	series  *dictionary
	active  child // takes new events
	frozen  child // is being merged
}

// appendix is what one commit adds: chunks in ascending order.
type appendix struct {
	chunks  []chunk
	release func() // called when the chunks' memory is no longer needed
}

const (
	// A merge is due after this time, or when this many events are in memory: about 25 MB, and
	// replayed in less than a second.
	mergeInterval = 5 * time.Second
	mergeEntries  = 500_000

	// maxEntries stops applying, and in the end committing, when merges do not keep up.
	maxEntries = 2 * mergeEntries

	// indexQueue is how many commits may be waiting to be applied. Applying is several times as
	// fast as committing, so the queue is empty but for moments.
	indexQueue = 16
)

// openIndex opens or creates the index at path and applies those of the events' chunks that the stored trees do not
// cover. It takes what is pushed once run was started.
func openIndex(path string, events *badger.DB, log *slog.Logger) (*index, error) {
	db, err := openIndexFile(path)
	if err != nil {
		return nil, err
	}
	x := &index{
		db:     db,
		commit: (*bolt.Tx).Commit,
		log:    log,
		recent: map[merchantKey]*recent{},
		arenas: sync.Pool{New: func() any { return &nodeArena{} }},
		queue:  make(chan appendix, indexQueue),
		done:   make(chan struct{}),
	}
	x.advanced.L = &x.progress
	if err := x.replay(events); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return x, nil
}

// push hands over what a commit added. It blocks while too much is waiting.
func (x *index) push(a appendix) { x.queue <- a }

// close applies what was pushed, merges it and ends. Nothing may be pushed any more.
func (x *index) close() error {
	close(x.queue)
	<-x.done
	return errors.Join(x.failure(), x.db.Close())
}

func (x *index) failure() error {
	x.progress.Lock()
	defer x.progress.Unlock()
	return x.err
}

// wait returns when the chunks up to seq are in the trees.
func (x *index) wait(seq uint64) error {
	x.progress.Lock()
	defer x.progress.Unlock()
	for x.applied < seq && x.err == nil {
		x.advanced.Wait()
	}
	return x.err
}

func (x *index) advance(seq uint64, err error) {
	x.progress.Lock()
	if err != nil && x.err == nil {
		x.err = fmt.Errorf("event index: %w", err)
		x.log.Error("no events can be taken: the index failed", "error", err)
	}
	x.applied = max(x.applied, seq)
	x.progress.Unlock()
	x.advanced.Broadcast()
}

// run applies what is pushed, while merges go on beside it, one at a time.
func (x *index) run() {
	defer close(x.done)
	ticker := time.NewTicker(mergeInterval)
	defer ticker.Stop()
	merged := make(chan error, 1)
	merging, due := false, false
	var f frozen
	waiting := false // f was not merged, as the disk was full
	note := func(err error) {
		full := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
		merging, waiting = false, full && x.entries < maxEntries
		if waiting {
			x.log.Error("the index waits for disk space", "error", err)
			return
		}
		x.advance(0, err)
	}
	for {
		queue := x.queue
		if merging && x.entries >= maxEntries {
			queue = nil
		}
		select {
		case <-ticker.C:
			due = true
		case err := <-merged:
			note(err)
		case a, open := <-queue:
			if !open {
				if merging {
					note(<-merged)
				}
				if x.failure() == nil && !waiting {
					x.advance(0, x.merge(x.freeze()))
				}
				return
			}
			x.take(a)
		}
		if !merging && (due || x.entries >= mergeEntries && !waiting) && x.failure() == nil {
			if !waiting {
				f = x.freeze()
			}
			merging, due = true, false
			go func() { merged <- x.merge(f) }()
		}
	}
}

// take applies an appendix. After a failure it only lets go of the memory: the chunks are safe, and
// the next start applies them.
func (x *index) take(a appendix) {
	defer a.release()
	if x.failure() != nil {
		return
	}
	err := x.apply(a.chunks)
	x.advance(a.chunks[len(a.chunks)-1].seq, err)
}

// apply adds the chunks' events to the trees in memory.
func (x *index) apply(chunks []chunk) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	var m merchantKey
	var r *recent
	for _, c := range chunks {
		d := decoder{b: c.data}
		for i := uint16(0); len(d.b) > 0; i++ {
			e := d.next()
			if err := d.err("chunk"); err != nil {
				return err
			}
			if r == nil || e.merchant != m {
				var err error
				if r, err = x.recentOf(e.merchant); err != nil {
					return err
				}
				m = e.merchant
			}
			if c.seq <= r.covered {
				continue // a replay of what a merge already covers
			}
			if err := r.active.insertAtRoot(entry{entryKey{e.time, position{c.seq, i}}, r.series.id(e.series)}, nil); err != nil {
				return err
			}
			x.entries++
		}
		x.covered = c.seq
	}
	return nil
}

// read looks at the file in one transaction.
func (x *index) read(look func(tx *bolt.Tx) error) error {
	return catchDamage("index.db", func() error { return x.db.View(look) })
}

// recentOf returns what is in memory of a merchant; x.mu is held.
func (x *index) recentOf(m merchantKey) (*recent, error) {
	if r := x.recent[m]; r != nil {
		return r, nil
	}
	var t *tree
	if err := x.read(func(tx *bolt.Tx) (err error) {
		t, err = loadTree(tx, m)
		return err
	}); err != nil {
		return nil, err
	}
	r := &recent{covered: t.covered, series: newDictionary(t.series)}
	x.recent[m] = r
	return r, nil
}

// replay applies the chunks that came after the last merge.
func (x *index) replay(events *badger.DB) error {
	if err := x.read(func(tx *bolt.Tx) (err error) {
		x.covered, err = loadCovered(tx)
		return err
	}); err != nil {
		return err
	}
	txn := events.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	if x.covered > 0 {
		// Chunks are on disk before the index hears of them.
		found, err := lookup(txn, appendChunkKey(nil, x.covered), func([]byte) error { return nil })
		if err != nil {
			return err
		}
		if !found {
			return errors.New("index.db knows of events that are not in events/: restore these, or delete index.db if these are what was restored")
		}
	}
	it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{prefixChunk}})
	defer it.Close()
	var data []byte
	for it.Seek(appendChunkKey(nil, x.covered+1)); it.Valid(); it.Next() {
		seq, err := parseChunkKey(it.Item().Key())
		if err != nil {
			return err
		}
		if err := it.Item().Value(func(packed []byte) error {
			data, err = unpackChunk(data, packed)
			return err
		}); err != nil {
			return fmt.Errorf("chunk %d: %w", seq, err)
		}
		if err := x.apply([]chunk{{seq, data}}); err != nil {
			return err
		}
		if x.entries >= mergeEntries {
			if err := x.merge(x.freeze()); err != nil {
				return err
			}
		}
	}
	x.applied = x.covered
	return nil
}
