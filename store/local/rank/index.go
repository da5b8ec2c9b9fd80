package rank

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
	"mtagd/store/local/space"
)

// Index is the index of all merchants' events.
type Index struct {
	db  *boltfile.DB // index.db
	log *slog.Logger

	// These are loadTree, (*bolt.Tx).Commit and the constants of these names, except in tests.
	load          func(*bolt.Tx, store.MerchantKey) (*storedTree, error)
	commit        func(*bolt.Tx) error
	txBudget      int
	maxSeries     int
	maxRun        int
	mergeInterval time.Duration
	mergeEntries  int

	// Whoever changes recent, or a tree in it, holds mu. Readers hold it only to take a snapshot. Only the applying
	// goroutine adds and removes merchants, so it may read the map without mu.
	mu      sync.Mutex
	recent  map[store.MerchantKey]*recentEvents
	entries int    // in the active trees
	covered uint64 // the events of chunks up to this seq are in the trees

	arenas sync.Pool // *nodeArena, for readers

	onDamage func(error) // of OnDamage

	unmerged frozenEvents // a merge is writing them; or the disk was full, and the next merge is of the same events again

	removing sync.Mutex // held by removals, one after the other
	storing  sync.Mutex // held by whoever changes stored trees

	queue  chan committedBatch
	merges chan chan error // each gets the result of the first merge that begins after it was sent
	done   chan struct{}   // closed when the applying goroutine has ended

	unswept     chan struct{}      // gets a value when there may be nodes to delete
	stopSweeper context.CancelFunc // nil until Start
	sweeper     sync.WaitGroup

	progress progress

	mergeTime prometheus.Histogram // seconds
	events    atomic.Uint64        // of all merchants
}

// committedBatch is the events of one commit. They are valid until release is called.
type committedBatch struct {
	events  []codec.Event
	last    uint64 // number of their last chunk
	release func()
}

const (
	// A merge is due after this time, or when this many events are in memory: about 25 MB, which a replay applies in
	// less than a second. Events of overflow series count as several, as they take more memory.
	mergeInterval   = 5 * time.Second
	mergeEntries    = 500_000
	overflowEntries = 3

	// At twice as many entries nothing is applied until the merge is done: the queue fills, and then commits wait.
	//
	// While the disk is full, merges fail and are retried, until maxUnmerged entries wait for one. That is enough: the
	// journal accepts no events then, and those in its queue (32 MiB) and in this package's are less than twice
	// mergeEntries.
	maxUnmerged = 8 * mergeEntries

	// A batch of more than applyPiece events is applied in several pieces, each of whole chunks: listings wait for one
	// piece, and not for the batch, which may take 10 ms.
	applyPiece = 256

	// maxQueue is how many commits may wait to be applied. Applying is much faster than committing: few ever wait.
	maxQueue = 16
)

// Open opens or creates the index at path. The caller then replays the events after Covered, and calls Start. The error
// for a file that is damaged is codec.ErrCorrupt, for one of another format codec.UnknownFormat.
func Open(path string, log *slog.Logger) (*Index, error) {
	db, err := openFile(path, bolt.Options{})
	if err != nil {
		return nil, err
	}
	x := &Index{
		db:            db,
		log:           log,
		load:          loadTree,
		commit:        (*bolt.Tx).Commit,
		txBudget:      txBudget,
		maxSeries:     maxSeries,
		maxRun:        maxRun,
		mergeInterval: mergeInterval,
		mergeEntries:  mergeEntries,
		recent:        map[store.MerchantKey]*recentEvents{},
		arenas:        sync.Pool{New: func() any { return &nodeArena{} }},
		queue:         make(chan committedBatch, maxQueue),
		merges:        make(chan chan error),
		done:          make(chan struct{}),
		unswept:       make(chan struct{}, 1),
		mergeTime: newDuration("mtagd_index_merge_duration_seconds",
			"Time that a merge takes to write the events in memory into index.db, every few seconds."),
	}
	if x.covered, err = x.StoredUpTo(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	x.progress.note(x.covered, nil)
	// Damage does not keep the index from opening: the merchant's requests fail.
	events, err := x.countEvents(func(err error) { log.Error("the events of a merchant are not counted", "error", err) })
	if err != nil {
		log.Error("the events were not counted", "error", err)
	}
	x.events.Store(events)
	return x, nil
}

// countEvents counts the stored events. It leaves out merchants with a damaged root record, and passes the error to damaged.
func (x *Index) countEvents(damaged func(error)) (n uint64, err error) {
	err = x.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketRoots).ForEach(func(k, _ []byte) error {
			t, err := loadTree(tx, store.MerchantKey(k))
			if err != nil {
				damaged(err)
				return nil
			}
			n += t.root.counts.of(nil)
			return nil
		})
	})
	return n, err
}

// Covered returns the number of the last chunk whose events are in the index. Call it before Start.
func (x *Index) Covered() uint64 { return x.covered }

// LimitSeries changes how many series the index counts for each merchant; 0: the default. Only for tests, before Replay.
func (x *Index) LimitSeries(n int) { x.maxSeries = cmp.Or(n, maxSeries) }

// Replay applies events of chunks after Covered; last is the number of their last chunk. Call it before Start, in the
// order of receipt. Events that were removed while the journal still has them must be left out when the whole index is
// rebuilt. There may be no events: then the index only notes that it covers the chunk.
func (x *Index) Replay(events []codec.Event, last uint64) error {
	before := x.entries
	if err := x.apply(events, last); err != nil {
		return err
	}
	x.progress.note(last, nil)
	if x.entries/x.mergeEntries == before/x.mergeEntries {
		return nil // also on a full disk, where merges fail, the next one is tried only after another mergeEntries
	}
	if len(x.unmerged.trees) == 0 {
		x.unmerged = x.freeze()
	}
	err := x.merge(x.unmerged)
	if err == nil {
		x.unmerged = frozenEvents{}
		err = x.sweep(context.Background()) // it has not started: what all merges of a rebuild replace would take many times the space
	}
	if space.IsFull(err) && x.entries < maxUnmerged {
		return nil // the first merge after Start is of the same events again
	}
	return err
}

// Push queues the events of a commit, to be applied in the order of the calls; last is the number of their last chunk.
// The events must not change until the index calls release. Push blocks while the queue is full.
func (x *Index) Push(events []codec.Event, last uint64, release func()) {
	x.queue <- committedBatch{events, last, release}
}

// Close applies and merges what was pushed, and closes the file. Push must not be called any more.
func (x *Index) Close() error {
	x.stop()
	return errors.Join(x.Failure(), x.db.Close())
}

// stop ends the goroutines.
func (x *Index) stop() {
	if x.stopSweeper != nil {
		close(x.queue)
		<-x.done
		x.stopSweeper()
		x.sweeper.Wait()
	}
}

// Discard closes an index that is not needed any more, without writing what was applied.
func (x *Index) Discard() error {
	x.progress.note(0, errClosed)
	x.stop()
	return x.db.Close()
}

// OnDamage sets what is called when the index finds damage of its file in the background. Call it before Start.
func (x *Index) OnDamage(call func(error)) { x.onDamage = call }

// reportDamage calls what OnDamage has set, if an error says that the file is damaged.
func (x *Index) reportDamage(err error) {
	if errors.Is(err, codec.ErrCorrupt) && x.onDamage != nil {
		x.onDamage(err)
	}
}

// Failure returns the error that has stopped the index from applying events, or nil.
func (x *Index) Failure() error {
	_, err := x.progress.reached(0)
	return err
}

// Wait returns nil when the events of all chunks up to seq are in the trees. It returns an error when ctx ends, and once the
// index has failed, whatever seq is.
func (x *Index) Wait(ctx context.Context, seq uint64) error { return x.progress.wait(ctx, seq) }

// applyBatch applies a batch and releases it. After a failure it applies nothing: the next start replays the events.
func (x *Index) applyBatch(b committedBatch) {
	defer b.release()
	if x.Failure() != nil {
		return
	}
	if err := x.apply(b.events, b.last); err != nil {
		x.fail(err)
		return
	}
	x.progress.note(b.last, nil)
}

// fail stops the index from applying events.
func (x *Index) fail(err error) {
	x.log.Error("no events can be accepted: the index failed", "error", err)
	x.progress.note(0, fmt.Errorf("event index: %w", err))
	x.reportDamage(err)
}

// apply adds events to the trees in memory; last is the number of their last chunk.
func (x *Index) apply(events []codec.Event, last uint64) error {
	if err := x.addRecents(events); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	var r *recentEvents
	applied, piece := uint64(0), 0
	for i := range events {
		e := &events[i]
		if i-piece >= applyPiece && e.Seq != events[i-1].Seq {
			x.covered, piece = events[i-1].Seq, i
			x.mu.Unlock() // a listing may be waiting
			x.mu.Lock()
		}
		if i == 0 || e.Merchant != events[i-1].Merchant {
			r = x.recent[e.Merchant]
		}
		if e.Seq <= r.covered {
			continue // this is a replay, and the stored tree has the event already
		}
		series, overflow := r.series.number(e.Series)
		at := entry{Key: Key{e.Time, e.Position}, series: series, size: e.Size}
		if err := r.active.root.insertAtRoot(at, nil); err != nil {
			return err
		}
		if overflow {
			_, name := codec.SplitSeries(e.Series)
			at.name, at.size = string(name), 0
			if err := r.active.names.add(at); err != nil {
				return err
			}
			x.entries += overflowEntries - 1
		}
		x.entries++
		applied++
	}
	x.events.Add(applied)
	x.covered = last
	return nil
}

// addRecents adds an empty recentEvents for each merchant of the events that has none in memory. It reads the root
// records of these merchants. It does not hold mu meanwhile, so that listings go on while the disk is slow.
func (x *Index) addRecents(events []codec.Event) error {
	var added map[store.MerchantKey]*recentEvents
	for i := range events {
		m := &events[i].Merchant
		if i > 0 && *m == events[i-1].Merchant || x.recent[*m] != nil {
			continue
		}
		if added == nil {
			added = map[store.MerchantKey]*recentEvents{}
		}
		added[*m] = nil
	}
	if added == nil {
		return nil
	}
	if err := x.db.View(func(tx *bolt.Tx) error {
		for m := range added {
			t, err := x.load(tx, m)
			if err != nil {
				return err
			}
			added[m] = &recentEvents{covered: t.covered, series: newDictionary(t.series, x.maxSeries)}
		}
		return nil
	}); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	maps.Copy(x.recent, added)
	return nil
}

// freeze returns the active trees for the next merge; new events go into new active trees. It drops merchants without new
// events from memory. Only the applying goroutine calls it, while no merge is running.
func (x *Index) freeze() frozenEvents {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := frozenEvents{trees: make(map[store.MerchantKey]*recentEvents, len(x.recent)), covered: x.covered}
	for m, r := range x.recent {
		if r.active.root.isEmpty() {
			delete(x.recent, m)
			continue
		}
		r.frozen, r.active = r.active, eventsInMemory{}
		f.trees[m] = r
	}
	x.entries = 0
	return f
}

// merge writes frozen events into the stored trees. Applying and reading go on meanwhile.
func (x *Index) merge(f frozenEvents) error {
	if len(f.trees) == 0 {
		return nil
	}
	x.storing.Lock()
	defer x.storing.Unlock()
	began := time.Now()
	w := merger{x: x, ctx: context.Background(), budget: x.txBudget, commit: x.commit}
	if err := w.mergeAll(f); err != nil {
		return err
	}
	x.mergeTime.Observe(time.Since(began).Seconds())
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, r := range f.trees {
		r.covered, r.frozen = f.covered, eventsInMemory{}
	}
	x.sweepSoon()
	return nil
}

// Usage returns the number of a merchant's events, and the sum of their sizes (codec.Event).
func (x *Index) Usage(ctx context.Context, m store.MerchantKey) (events, bytes uint64, err error) {
	err = x.view(ctx, m, func(r *reader) error {
		for _, root := range r.trees {
			events += root.counts.of(nil)
			bytes += root.bytes
		}
		return nil
	})
	return events, bytes, err
}

// CountFrom counts the events of a merchant from a time on (µs since 1970), and returns the last chunk that the trees have.
func (x *Index) CountFrom(ctx context.Context, m store.MerchantKey, from int64) (events, upTo uint64, err error) {
	err = x.view(ctx, m, func(r *reader) error {
		upTo = r.upTo
		earlier, err := r.before(Key{Time: from})
		for _, root := range r.trees {
			events += root.counts.of(nil)
		}
		events -= sum(earlier, nil)
		return err
	})
	return events, upTo, err
}

// view calls read with a reader of the merchant's trees, as of one moment. What the reader returns is valid until read
// returns. Meanwhile new events are applied.
func (x *Index) view(ctx context.Context, m store.MerchantKey, read func(r *reader) error) error {
	return x.viewAll(ctx, []store.MerchantKey{m}, func(readers []*reader) error { return read(readers[0]) })
}

// viewAll is view for several merchants, as of one moment.
func (x *Index) viewAll(ctx context.Context, merchants []store.MerchantKey, read func(readers []*reader) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return boltfile.CatchDamage("index.db", func() error {
		tx, memory, upTo, err := x.snapshot(merchants)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // fails only when the transaction has ended already
		arena := x.arenas.Get().(*nodeArena)
		defer arena.release(&x.arenas)
		readers := make([]*reader, len(merchants))
		for i, m := range merchants {
			if err := ctx.Err(); err != nil {
				return err
			}
			if readers[i], err = newReader(newPages(ctx, tx, m, arena), tx, memory[i]); err != nil {
				return err
			}
			readers[i].upTo = upTo
		}
		return read(readers)
	})
}

// snapshot begins a transaction, and returns what is in memory of merchants (nil: nothing), and x.covered, as of one moment.
func (x *Index) snapshot(merchants []store.MerchantKey) (tx *bolt.Tx, memory []*recentEvents, upTo uint64, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	memory = make([]*recentEvents, len(merchants))
	for i, m := range merchants {
		if recent := x.recent[m]; recent != nil {
			memory[i] = recent.snapshot()
		}
	}
	tx, err = x.db.Begin(false)
	return tx, memory, x.covered, err
}

// newReader returns a reader of a merchant's trees. recent is nil when nothing is in memory.
func newReader(p *pages, tx *bolt.Tx, recent *recentEvents) (*reader, error) {
	t, err := loadTree(tx, p.m)
	if err != nil {
		return nil, err
	}
	r := &reader{pages: *p, series: t.series}
	addTree := func(root *child) {
		if !root.isEmpty() {
			r.trees = append(r.trees, root)
		}
	}
	addRun := func(a *run) {
		if !a.root.isEmpty() {
			r.runs = append(r.runs, a)
		}
	}
	addTree(&t.root)
	for i := range t.runs {
		addRun(&t.runs[i])
	}
	if recent == nil {
		return r, nil
	}
	r.series = recent.series.names()
	memory := []*eventsInMemory{&recent.frozen, &recent.active}
	if t.covered != recent.covered { // a merge was committed just now, and the stored tree has the frozen events
		memory = memory[1:]
	}
	for _, events := range memory {
		addTree(&events.root)
		addRun(&events.names)
	}
	return r, nil
}
