// Package rank is the embedded engine's index of events. It takes events in, and answers which events have which ranks:
// the total of a query and the positions of one page, in time that does not depend on the number of events or the
// depth of the page. It knows neither the journal that keeps the events nor their content beyond time and series.
//
// Each merchant has a counted B+ tree (tree.go) in two layers: a stored tree, and in memory trees of the events since.
// One goroutine applies events to the trees in memory, in the order of receipt. Every few seconds a merge writes the
// events in memory into the stored trees. After a crash the owner replays the events that the stored trees do not
// cover, so that none is lost and none is counted twice.
//
//	query.go       pages of a selection, and candidates where counts do not suffice
//	index.go       Index: open, replay, apply, merge, close
//	progress.go    lets readers wait until events were applied
//	merge.go       writes events into the stored trees, in one or more transactions
//	runs.go        runs of ranks, from one tree or several
//	reader.go      one merchant's trees as of one moment; counts events before a key
//	nodefile.go    the records in index.db
//	nodearena.go   the memory of decoded nodes
//	tree.go        the counted tree in memory
//	dictionary.go  numbers a merchant's series
//	selection.go   a query in the terms of the index
//
// # What is in index.db
//
// The index is in a bbolt file of format "1". Its nodes are replaced all the time, and bbolt reuses their pages; Badger
// would have to compact them away, which requests wait for. Buckets:
//
//	meta      "format" → version
//	          "covered" → seq: the stored trees have the events of chunks up to it (8 bytes, big endian)
//	nodes     merchant, node id (8 bytes, big endian) → node of the merchant's stored tree
//	roots     merchant → root record of that tree
//	replaced  merchant → ids of nodes that the last merge replaced and that are still to be deleted
//	          (number, ids; uvarints)
//
// A merchant is the 16 bytes of its UUID. Each node, root record and list of ids is sealed: it ends with its CRC-32C
// (4 bytes, big endian), as bbolt has no checksums.
//
// The root record: next id, root id, covered (uvarints), first key, counts of the root, series (number, each
// length-prefixed).
//
// A node: 0, number of entries, entries; or 1, number of children, children. Keys are stored as differences to the
// previous key.
//
//	entry:   key, series (uvarint)
//	child:   key, id (uvarint), counts
//	counts:  number of series (uvarint), for each: series as difference to the previous one (uvarint),
//	         events (uvarint)
//	key:     time (varint), seq (varint), index (uvarint, not a difference)
package rank

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
)

// Index is the index of all merchants' events.
type Index struct {
	db  *bolt.DB // index.db
	log *slog.Logger

	// What tests replace.
	load   func(*bolt.Tx, codec.MerchantKey) (*tree, error)
	commit func(*bolt.Tx) error

	// Only the applying goroutine adds and removes recents. It holds mu for that, as readers do while they walk trees.
	mu      sync.RWMutex
	recent  map[codec.MerchantKey]*recent
	entries int    // in the active trees
	covered uint64 // the events of chunks up to this seq are in the trees

	arenas sync.Pool // *nodeArena, for readers

	queue   chan batch
	started bool
	done    chan struct{} // closed when the applying goroutine has ended

	progress progress
}

// recent is a merchant's events in memory.
type recent struct {
	covered uint64 // of the stored tree, as far as the index knows
	series  *dictionary
	active  child // takes new events
	frozen  child // is being merged
}

// batch is the events of one commit. They are valid until release is called.
type batch struct {
	events  []codec.Event
	last    uint64 // number of their last chunk
	release func()
}

const (
	// A merge is due after this time, or when this many events are in memory: about 25 MB, which a replay applies in
	// less than a second.
	mergeInterval = 5 * time.Second
	mergeEntries  = 500_000

	// At maxEntries nothing more is applied until a merge is done. Then the queue fills, and commits wait.
	maxEntries = 2 * mergeEntries

	// maxQueue is how many commits may wait to be applied. Applying is several times as fast as committing, so the queue
	// is nearly always empty.
	maxQueue = 16
)

// Open opens or creates the index at path. The owner then replays the events after Covered, and calls Start.
func Open(path string, log *slog.Logger) (*Index, error) {
	db, err := openFile(path)
	if err != nil {
		return nil, err
	}
	x := &Index{
		db:     db,
		log:    log,
		load:   loadTree,
		commit: (*bolt.Tx).Commit,
		recent: map[codec.MerchantKey]*recent{},
		arenas: sync.Pool{New: func() any { return &nodeArena{} }},
		queue:  make(chan batch, maxQueue),
		done:   make(chan struct{}),
	}
	if err := x.read(func(tx *bolt.Tx) (err error) {
		x.covered, err = loadCovered(tx)
		return err
	}); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	x.progress.advance(x.covered)
	return x, nil
}

// Covered returns the number of the last chunk whose events are in the index. It is called before Start.
func (x *Index) Covered() uint64 { return x.covered }

// Replay applies events again that came after Covered; last is the number of their last chunk. It is called before
// Start, in the order of receipt.
func (x *Index) Replay(events []codec.Event, last uint64) error {
	if err := x.apply(events, last); err != nil {
		return err
	}
	x.progress.advance(last)
	if x.entries < mergeEntries {
		return nil
	}
	return x.merge(x.freeze())
}

// Start begins to apply pushed events, and to merge.
func (x *Index) Start() {
	x.started = true
	go x.run()
}

// Push hands over the events of a commit, in the order of receipt; last is the number of their last chunk. They must
// not change until the index calls release. Push blocks while too much waits.
func (x *Index) Push(events []codec.Event, last uint64, release func()) {
	x.queue <- batch{events, last, release}
}

// Close applies and merges what was pushed, and closes the file. Nothing may be pushed any more.
func (x *Index) Close() error {
	if x.started {
		close(x.queue)
		<-x.done
	}
	return errors.Join(x.Failure(), x.db.Close())
}

// Failure returns the error after which nothing is applied any more, or nil.
func (x *Index) Failure() error { return x.progress.failure() }

// Wait returns when the events of the chunks up to seq are in the trees, or when ctx ends.
func (x *Index) Wait(ctx context.Context, seq uint64) error { return x.progress.wait(ctx, seq) }

// run applies what is pushed. Merges run at the same time in another goroutine, one after the other.
func (x *Index) run() {
	defer close(x.done)
	ticker := time.NewTicker(mergeInterval)
	defer ticker.Stop()
	merged := make(chan error, 1)
	merging, due := false, false
	var f frozen
	retry := false // the merge of f failed as the disk was full
	ended := func(err error) {
		full := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
		merging, retry = false, full && x.entries < maxEntries
		if retry {
			x.log.Error("the index waits for disk space", "error", err)
			return
		}
		x.fail(err)
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
			ended(err)
		case b, open := <-queue:
			if !open {
				if merging {
					ended(<-merged)
				}
				if x.Failure() == nil && !retry {
					x.fail(x.merge(x.freeze()))
				}
				return
			}
			x.take(b)
		}
		if !merging && (due || x.entries >= mergeEntries && !retry) && x.Failure() == nil {
			if !retry {
				f = x.freeze()
			}
			merging, due = true, false
			go func() { merged <- x.merge(f) }()
		}
	}
}

// take applies a batch. After a failure it only releases the batch: the events are in the journal, and the next start
// replays them.
func (x *Index) take(b batch) {
	defer b.release()
	if x.Failure() != nil {
		return
	}
	if err := x.apply(b.events, b.last); err != nil {
		x.fail(err)
		return
	}
	x.progress.advance(b.last)
}

// fail ends applying with an error, if it is one.
func (x *Index) fail(err error) {
	if err == nil {
		return
	}
	x.log.Error("no events can be accepted: the index failed", "error", err)
	x.progress.fail(fmt.Errorf("event index: %w", err))
}

// apply adds events to the trees in memory; last is the number of their last chunk.
func (x *Index) apply(events []codec.Event, last uint64) error {
	loaded, err := x.loadRecents(events)
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for m, r := range loaded {
		x.recent[m] = r
	}
	var r *recent
	for i := range events {
		e := &events[i]
		if i == 0 || e.Merchant != events[i-1].Merchant {
			r = x.recent[e.Merchant]
		}
		if e.Seq <= r.covered {
			continue // a replay of an event that is in the stored tree
		}
		if err := r.active.insertAtRoot(Entry{Key{e.Time, e.Position}, r.series.number(e.Series)}, nil); err != nil {
			return err
		}
		x.entries++
	}
	x.covered = last
	return nil
}

// loadRecents returns a new recent for each merchant of the events that has none. For that it reads the merchants' root
// records, without mu: listings go on while the disk is slow.
func (x *Index) loadRecents(events []codec.Event) (map[codec.MerchantKey]*recent, error) {
	var loaded map[codec.MerchantKey]*recent
	for i := range events {
		m := &events[i].Merchant
		if i > 0 && *m == events[i-1].Merchant || x.recent[*m] != nil {
			continue
		}
		if loaded == nil {
			loaded = map[codec.MerchantKey]*recent{}
		}
		loaded[*m] = nil
	}
	if loaded == nil {
		return nil, nil
	}
	err := x.read(func(tx *bolt.Tx) error {
		for m := range loaded {
			t, err := x.load(tx, m)
			if err != nil {
				return err
			}
			loaded[m] = &recent{covered: t.covered, series: newDictionary(t.series)}
		}
		return nil
	})
	return loaded, err
}

// read runs a transaction that only reads. Damage of the file becomes an error.
func (x *Index) read(look func(tx *bolt.Tx) error) error {
	return boltfile.CatchDamage("index.db", func() error { return x.db.View(look) })
}

// freeze takes the active trees for the next merge, and forgets merchants without events in memory. The applying
// goroutine calls it, while no merge is running.
func (x *Index) freeze() frozen {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := frozen{trees: make(map[codec.MerchantKey]frozenTree, len(x.recent)), covered: x.covered}
	for m, r := range x.recent {
		if r.active.isEmpty() {
			delete(x.recent, m)
			continue
		}
		r.frozen, r.active = r.active, child{}
		f.trees[m] = frozenTree{r.frozen, r.series}
	}
	x.entries = 0
	return f
}

// merge writes what is frozen into the stored trees. Applying and reading go on meanwhile.
func (x *Index) merge(f frozen) error {
	if len(f.trees) == 0 {
		return nil
	}
	w := newMerger(x.db, x.commit)
	if err := boltfile.CatchDamage("index.db", func() error { return w.mergeAll(f) }); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for m := range f.trees {
		r := x.recent[m]
		r.covered, r.frozen = f.covered, child{}
	}
	return nil
}

// view calls read with the merchant's trees, as of one moment. It does not call read when the merchant has no events.
// The nodes that read loads are valid until it returns. Applying waits until then.
func (x *Index) view(ctx context.Context, m codec.MerchantKey, read func(r *reader) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a file that was cut short fails this request only
	return x.db.View(func(tx *bolt.Tx) error {
		t, err := loadTree(tx, m)
		if err != nil {
			return err
		}
		arena := x.arenas.Get().(*nodeArena)
		defer arena.release(&x.arenas)
		r := &reader{ctx: ctx, m: m, series: t.series, nodes: tx.Bucket(bucketNodes), loaded: map[uint64]*node{}, arena: arena}
		roots := []*child{&t.root}
		if recent := x.recent[m]; recent != nil {
			r.series = recent.series.names()
			if t.covered == recent.covered { // else the merge was committed just now, and the stored tree has them
				roots = append(roots, &recent.frozen)
			}
			roots = append(roots, &recent.active)
		}
		for _, root := range roots {
			if !root.isEmpty() {
				r.trees = append(r.trees, root)
			}
		}
		if len(r.trees) == 0 {
			return nil
		}
		return read(r)
	})
}
