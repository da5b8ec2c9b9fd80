package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
	"mtagd/store/local/rank"
)

// The index is derived from the events, so damage of index.db loses none. The engine rebuilds the index by itself. If
// the index cannot be opened, it is rebuilt before the engine opens. If damage is found later, it is rebuilt beside the
// damaged one: meanwhile events are recorded, and listings are answered unless they read the damaged part.

// liveIndex is the index that the engine uses. A rebuild replaces it.
type liveIndex struct {
	*stored    // what a rebuild reads
	parts      *generation
	maxSeries  int                   // Options.MaxSeries
	registerer prometheus.Registerer // Options.Metrics

	pushing sync.Mutex // held while a commit is passed to the index, and while the index is replaced
	pushed  uint64     // the last chunk that was passed to the index

	mu         sync.Mutex
	now        *usedIndex
	rebuilding bool
	rebuilt    uint64 // how often

	work sync.WaitGroup // the goroutine that rebuilds, and those that close old indexes
}

// usedIndex is an index with its users. After it was replaced, it is closed when its last user is done.
type usedIndex struct {
	*rank.Index
	users    sync.WaitGroup
	replaced context.Context // ends when another index is used
	replace  context.CancelFunc
	metrics  []prometheus.Collector
}

func (l *liveIndex) newUsedIndex(x *rank.Index) *usedIndex {
	x.OnDamage(func(err error) { l.startRebuild(x, err) })
	u := &usedIndex{Index: x, metrics: x.Metrics()}
	u.replaced, u.replace = context.WithCancel(context.Background())
	return u
}

// errReplaced says that another index is used now.
var errReplaced = errors.New("the index was replaced")

// wait waits until the index has all events up to the chunk seq. It returns errReplaced if the index was replaced before.
func (u *usedIndex) wait(ctx context.Context, seq uint64) error {
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(u.replaced, cancel)()
	err := u.Wait(both, seq)
	if err != nil && ctx.Err() == nil && u.replaced.Err() != nil {
		return errReplaced
	}
	return err
}

// use returns the index. It stays open until users.Done is called.
func (l *liveIndex) use() *usedIndex {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now.users.Add(1)
	return l.now
}

// withIndex calls read with the index, and again when the index is replaced while read waits for it. When the index is
// damaged where read needs it, withIndex fails with KindUnavailable, and the index is rebuilt.
func (l *liveIndex) withIndex(read func(x *usedIndex) error) error {
	x := l.use()
	err := func() error {
		defer x.users.Done()
		return read(x)
	}()
	if errors.Is(err, errReplaced) {
		return l.withIndex(read)
	}
	if errors.Is(err, codec.ErrCorrupt) {
		l.startRebuild(x.Index, err)
		err = fmt.Errorf("%w: %w", store.Unavailable("the index of the events is being rebuilt"), err)
	}
	return err
}

// withCommitted is withIndex, when the index has all events that were committed before the call.
func (l *liveIndex) withCommitted(ctx context.Context, read func(x *usedIndex) error) error {
	return l.withIndex(func(x *usedIndex) error {
		if err := x.wait(ctx, l.journal.Committed()); err != nil {
			return err
		}
		return read(x)
	})
}

// push passes the events of a commit to the index.
func (l *liveIndex) push(events []codec.Event, last uint64, release func()) {
	l.pushing.Lock()
	defer l.pushing.Unlock()
	l.pushed = last
	l.now.Push(events, last, release) // now changes only while pushing is held
}

// failure returns why the index takes no events and is not being rebuilt either; else nil.
func (l *liveIndex) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rebuilding {
		return nil
	}
	return l.now.Failure()
}

// metrics returns the metrics of the rebuilds.
func (l *liveIndex) metrics() []prometheus.Collector {
	return []prometheus.Collector{
		newGauge("mtagd_index_rebuilding", "1 while a damaged index of the events is being rebuilt; then some listings fail.", func() float64 {
			l.mu.Lock()
			defer l.mu.Unlock()
			return oneIf(l.rebuilding)
		}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "mtagd_index_rebuilds_total",
			Help: "How often a damaged index of the events was rebuilt.",
		}, func() float64 {
			l.mu.Lock()
			defer l.mu.Unlock()
			return float64(l.rebuilt)
		}),
	}
}

// openIndex opens index.db and replays the events that it lacks. If it is damaged, too old or of another version, it is rebuilt.
func (l *liveIndex) openIndex() (*rank.Index, error) {
	path := Parts(l.dir)["index"]
	if err := durable.Remove(path + durable.NewSuffix); err != nil { // a rebuild was cut off
		return nil, err
	}
	x, err := l.tryIndex(path)
	_, ofOtherVersion := errors.AsType[codec.UnknownFormat](err)
	switch {
	case errors.Is(err, errBeginAgain) || ofOtherVersion:
		l.log.Warn("index.db is rebuilt from archive/ and events/", "reason", err)
	case errors.Is(err, codec.ErrCorrupt):
		l.log.Error("index.db is damaged. No events are lost: it is rebuilt from archive/ and events/", "error", err)
		l.rebuilt++
	default:
		return x, err
	}
	if err := os.Remove(path); err != nil {
		return nil, err
	}
	return l.tryIndex(path)
}

// tryIndex opens an index and replays the events that it lacks.
func (l *liveIndex) tryIndex(path string) (*rank.Index, error) {
	x, err := rank.Open(path, l.log)
	if err != nil {
		return nil, err
	}
	x.LimitSeries(l.maxSeries)
	if err := l.catchUp(x); err != nil {
		return nil, errors.Join(err, x.Discard())
	}
	return x, nil
}

// startRebuild starts a rebuild if err says that the index x is damaged, unless x was replaced already.
func (l *liveIndex) startRebuild(x *rank.Index, err error) {
	if !errors.Is(err, codec.ErrCorrupt) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rebuilding || l.now.Index != x || l.opened.Err() != nil {
		return
	}
	l.rebuilding = true
	l.log.Error("index.db is damaged and is being rebuilt. No events are lost, and new ones are recorded. "+
		"Some listings fail until then", "error", err)
	l.work.Go(l.rebuildIndex)
}

// rebuildRetry is how long a rebuild that has failed waits before it begins again.
const rebuildRetry = time.Minute

// rebuildIndex rebuilds the index until that succeeds or the engine closes.
func (l *liveIndex) rebuildIndex() {
	began := time.Now()
	for {
		err := l.tryRebuild()
		if err == nil {
			l.log.Info("index.db was rebuilt", "seconds", int(time.Since(began).Seconds()))
			return
		}
		if l.opened.Err() != nil {
			return
		}
		l.log.Error("index.db cannot be rebuilt now; this is tried again", "error", err)
		if store.Sleep(l.opened, rebuildRetry) != nil {
			return
		}
	}
}

// tryRebuild builds an index beside the old one, and replaces that:
//
//  1. Replay what the old index has got. Meanwhile more events are recorded.
//  2. Replay these, twice: each time, fewer events were recorded meanwhile.
//  3. Replay the rest while the journal's next commit waits. Replace the file and the index.
//
// After a kill before the file is replaced, the next start or listing finds the damage in the old file again.
func (l *liveIndex) tryRebuild() (err error) {
	// An event that moved meanwhile could be missed by the replays of both the archive and the journal. An event that
	// was removed could stay in the new index.
	defer l.PauseMoves()()
	l.removing.Lock()
	defer l.removing.Unlock()
	path := Parts(l.dir)["index"]
	if info, err := os.Stat(path); err != nil {
		return err
	} else if free := l.journal.FreeSpace(); free < uint64(info.Size()) {
		return store.Unavailable("the disk has too little space for another index.db")
	}
	if err := durable.Remove(path + durable.NewSuffix); err != nil {
		return err
	}
	x, err := rank.Open(path+durable.NewSuffix, l.log)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, x.Discard(), durable.Remove(path+durable.NewSuffix))
		}
	}()
	if err := x.SetOpening(l.parts.opening.now); err != nil {
		return err
	}
	x.LimitSeries(l.maxSeries)
	from := uint64(0)
	for range 3 {
		l.pushing.Lock()
		upTo := l.pushed
		l.pushing.Unlock()
		if err := l.replay(x, from, upTo); err != nil {
			return err
		}
		from = upTo
	}
	l.pushing.Lock()
	defer l.pushing.Unlock()
	if err := l.replay(x, from, l.pushed); err != nil {
		return err
	}
	if err := errors.Join(os.Rename(path+durable.NewSuffix, path), durable.SyncPath(l.dir)); err != nil {
		return err
	}
	l.replaceIndex(x)
	return nil
}

// replaceIndex makes x the index that is used. x has all events that were passed to the old one. The caller holds pushing.
func (l *liveIndex) replaceIndex(x *rank.Index) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.now
	l.now = l.newUsedIndex(x)
	x.Start()
	old.replace()
	l.rebuilding = false
	l.rebuilt++
	if l.registerer != nil {
		for _, c := range old.metrics {
			l.registerer.Unregister(c)
		}
		l.registerer.MustRegister(l.now.metrics...)
	}
	l.work.Go(func() {
		old.users.Wait()
		if err := old.Discard(); err != nil {
			l.log.Warn("the old index was not closed", "error", err)
		}
	})
}
