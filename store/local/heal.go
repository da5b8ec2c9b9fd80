package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
	"mtagd/store/local/space"
)

// The index is made of the events, so damage of index.db loses nothing. The engine rebuilds it by itself: an index
// that cannot be opened when the engine opens, and one in which damage is found later beside the damaged one. Meanwhile
// events are recorded, and listings that do not meet the damage are answered.

// liveIndex is the index that the engine uses. A rebuild replaces it.
type liveIndex struct {
	pushing sync.Mutex // held while a commit is passed to the index, and while the index is replaced
	pushed  uint64     // the last chunk that was passed to the index

	mu         sync.Mutex
	now        *usedIndex
	rebuilding bool
	rebuilt    uint64 // how often

	work sync.WaitGroup // the goroutine that rebuilds, and those that close old indexes
}

// usedIndex is an index, and who uses it. It is closed when nobody does any more.
type usedIndex struct {
	*rank.Index
	users    sync.WaitGroup
	replaced context.Context // ends when another index is used
	replace  context.CancelFunc
	metrics  []prometheus.Collector
}

func newUsedIndex(x *rank.Index) *usedIndex {
	u := &usedIndex{Index: x, metrics: x.Metrics()}
	u.replaced, u.replace = context.WithCancel(context.Background())
	return u
}

// errReplaced says that another index is used now.
var errReplaced = errors.New("the index was replaced")

// wait waits until the index has all events up to the chunk seq. errReplaced: it was replaced before it got them.
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

// push passes the events of a commit to the index.
func (l *liveIndex) push(events []codec.Event, last uint64, release func()) {
	l.pushing.Lock()
	defer l.pushing.Unlock()
	l.pushed = last
	l.now.Push(events, last, release) // only who holds pushing changes now
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
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "mtagd_index_rebuilding",
			Help: "1 while a damaged index of the events is being rebuilt; then some listings fail.",
		}, func() float64 {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.rebuilding {
				return 1
			}
			return 0
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

// openIndex opens index.db and replays what it lacks. When it is damaged, it is set aside and made anew.
func (e *engine) openIndex() (*rank.Index, error) {
	path := Parts(e.dir)["index"]
	if err := removeIfExists(path + newSuffix); err != nil { // a rebuild was cut off
		return nil, err
	}
	x, err := e.tryIndex(path)
	if !errors.Is(err, codec.ErrCorrupt) {
		return x, err
	}
	e.opt.Log.Error("index.db is damaged. No events are lost: it is rebuilt from events/", "error", err)
	if err := e.setIndexAside(path); err != nil {
		return nil, fmt.Errorf("set %s aside: %w", path, err)
	}
	e.index.rebuilt++
	return e.tryIndex(path)
}

// tryIndex opens an index and replays what it lacks.
func (e *engine) tryIndex(path string) (*rank.Index, error) {
	x, err := rank.Open(path, MinFree, e.opt.Log)
	if err != nil {
		return nil, err
	}
	if e.opt.maxSeries > 0 {
		x.LimitSeries(e.opt.maxSeries)
	}
	if err := e.catchUp(x); err != nil {
		return nil, errors.Join(err, x.Discard())
	}
	return x, nil
}

// setIndexAside moves a damaged index out of the way. It may know of events that events/ does not have any more. When the
// disk has no space for another one, it is removed.
func (e *engine) setIndexAside(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if free, err := space.Free(e.dir); err == nil && free < MinFree+2*info.Size() {
		return os.Remove(path)
	}
	kept, err := filepath.Glob(filepath.Join(e.dir, setAsideDir, "*", filepath.Base(path)))
	if err != nil {
		return err
	}
	for _, old := range kept { // one is enough
		if err := os.Remove(old); err != nil {
			return err
		}
		_ = os.Remove(filepath.Dir(old)) // it may have copies of files of events/
	}
	to := filepath.Join(e.dir, setAsideDir, time.Now().UTC().Format("20060102T150405.000000Z"))
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	return errors.Join(os.Rename(path, filepath.Join(to, filepath.Base(path))), journal.SyncPath(to), journal.SyncPath(filepath.Dir(to)))
}

// healIndex begins to rebuild an index when err says that it is damaged, unless it was replaced already.
func (e *engine) healIndex(x *rank.Index, err error) {
	if !errors.Is(err, codec.ErrCorrupt) {
		return
	}
	l := &e.index
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rebuilding || l.now.Index != x || e.opened.Err() != nil {
		return
	}
	l.rebuilding = true
	e.opt.Log.Error("index.db is damaged. No events are lost, and events are recorded: it is rebuilt from events/ beside the old one. "+
		"Some listings fail until then", "error", err)
	l.work.Go(e.rebuildIndex)
}

// rebuildRetry is how long a rebuild that has failed waits before it begins again.
const rebuildRetry = time.Minute

// rebuildIndex rebuilds the index until that succeeds or the engine closes.
func (e *engine) rebuildIndex() {
	began := time.Now()
	for {
		err := e.tryRebuild()
		if err == nil {
			e.opt.Log.Info("index.db was rebuilt", "seconds", int(time.Since(began).Seconds()))
			return
		}
		if e.opened.Err() != nil {
			return
		}
		e.opt.Log.Error("index.db cannot be rebuilt now; this is tried again", "error", err)
		select {
		case <-time.After(rebuildRetry):
		case <-e.opened.Done():
			return
		}
	}
}

const newSuffix = ".new" // of the file of an index that is being rebuilt

// tryRebuild builds an index beside the old one, and replaces that:
//
//  1. Replay what the old index has got. Meanwhile more events are recorded.
//  2. Replay these, and once more: fewer come meanwhile each time.
//  3. Replay the rest while the journal waits with the next commit. Replace the file and the index.
//
// A kill before the file is replaced leaves the old one, in which the next start or listing finds the damage again.
func (e *engine) tryRebuild() (err error) {
	// What moves or is removed meanwhile would be in neither of the two that are replayed, or only in the index.
	defer e.archiver.hold()()
	e.damage.removing.Lock()
	defer e.damage.removing.Unlock()
	path := Parts(e.dir)["index"]
	if info, err := os.Stat(path); err != nil {
		return err
	} else if free := e.FreeSpace(); free < uint64(info.Size()) {
		return store.Unavailable("the disk has too little space for another index.db")
	}
	if err := removeIfExists(path + newSuffix); err != nil {
		return err
	}
	x, err := rank.Open(path+newSuffix, MinFree, e.opt.Log)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, x.Discard(), removeIfExists(path+newSuffix))
		}
	}()
	if e.opt.maxSeries > 0 {
		x.LimitSeries(e.opt.maxSeries)
	}
	l := &e.index
	from := uint64(0)
	for range 3 {
		l.pushing.Lock()
		upTo := l.pushed
		l.pushing.Unlock()
		if err := e.replay(x, from, upTo); err != nil {
			return err
		}
		from = upTo
	}
	l.pushing.Lock()
	defer l.pushing.Unlock()
	if err := e.replay(x, from, l.pushed); err != nil {
		return err
	}
	if err := errors.Join(os.Rename(path+newSuffix, path), journal.SyncPath(e.dir)); err != nil {
		return err
	}
	e.replaceIndex(x)
	return nil
}

// replaceIndex makes x the index that is used. It has all events that were passed to the old one. The caller holds pushing.
func (e *engine) replaceIndex(x *rank.Index) {
	l := &e.index
	x.OnDamage(func(err error) { e.healIndex(x, err) })
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.now
	l.now = newUsedIndex(x)
	x.Start()
	old.replace()
	l.rebuilding = false
	l.rebuilt++
	if e.opt.Metrics != nil {
		for _, c := range old.metrics {
			e.opt.Metrics.Unregister(c)
		}
		e.opt.Metrics.MustRegister(l.now.metrics...)
	}
	l.work.Go(func() {
		old.users.Wait()
		if err := old.Discard(); err != nil {
			e.opt.Log.Warn("the old index was not closed", "error", err)
		}
	})
}

func removeIfExists(path string) error {
	if err := os.Remove(path); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
