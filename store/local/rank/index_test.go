package rank

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/codec"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// journal stands in for the engine's journal: it keeps the events of each commit.
type journal struct {
	commits   [][]codec.Event
	names     int  // how many made-up names the events have; 0: all have one name, which is counted
	maxSeries int  // Index.LimitSeries; 0: the default
	bots      bool // a fifth of the names is only used by bots
}

// commit adds n events of a merchant, at the times of timeOf. Made-up names are of two tags.
func (j *journal) commit(m store.MerchantKey, n int, timeOf func(i int) int64) []codec.Event {
	events := make([]codec.Event, n)
	for i := range events {
		events[i] = codec.Event{
			Merchant: m,
			Position: store.Position{Seq: uint64(len(j.commits) + 1), Index: uint16(i)},
			Time:     timeOf(i),
			Series:   codec.AppendSeries(nil, "cs_a", "Name", false),
			Size:     100,
		}
		if j.names > 0 {
			n := int(uint32(len(j.commits)*n+i)*2654435761) % j.names
			events[i].Series = codec.AppendSeries(nil, []store.TagID{"cs_a", "ss_b"}[i%2], fmt.Sprintf("MadeUp%d", n), j.bots && n%5 == 0)
		}
	}
	j.commits = append(j.commits, events)
	return events
}

// open opens the index in dir and replays what it does not cover. The tests have too few events for a merge before Start.
func (j *journal) open(t *testing.T, dir string) *Index {
	t.Helper()
	x, err := Open(filepath.Join(dir, "index.db"), quiet)
	if err != nil {
		t.Fatal(err)
	}
	x.db.NoSync = true // faster; the tests of kills copy the file, and see what is written, synced or not
	x.LimitSeries(j.maxSeries)
	for i := x.Covered(); i < uint64(len(j.commits)); i++ {
		if err := x.Replay(j.commits[i], i+1); err != nil {
			t.Fatal(err)
		}
	}
	return x
}

// push commits events and applies them.
func (j *journal) push(t *testing.T, x *Index, m store.MerchantKey, n int) {
	t.Helper()
	events := j.commit(m, n, func(i int) int64 { return int64(i) * 1000 })
	x.Push(events, events[0].Seq, func() {})
	if err := x.Wait(t.Context(), events[0].Seq); err != nil {
		t.Fatal(err)
	}
}

func closeIndex(t *testing.T, x *Index) {
	t.Helper()
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
}

func newMerchant(t *testing.T) store.MerchantKey {
	t.Helper()
	m, err := store.NewMerchantKey(store.NewMerchantID())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// list returns the keys of all events of a merchant, in the order of time. It checks that a listing by name has the same
// events.
func list(t *testing.T, x *Index, m store.MerchantKey) (keys []Key) {
	t.Helper()
	if err := x.view(t.Context(), m, func(r *reader) error {
		total, page, err := r.page(NewSelection(store.Query{SortBy: store.ByTime, Asc: true, Limit: math.MaxInt}))
		if total != uint64(len(page)) {
			t.Errorf("%d events, total %d", len(page), total)
		}
		for _, e := range page {
			keys = append(keys, e.Key)
		}
		if err != nil {
			return err
		}
		_, byName, err := r.page(NewSelection(store.Query{SortBy: store.ByName, Limit: math.MaxInt}))
		if !slices.IsSortedFunc(byName, func(a, b entry) int { return b.compare(&a) }) {
			t.Error("the listing by name is not sorted")
		}
		slices.SortFunc(byName, func(a, b entry) int { return a.Key.compare(b.Key) })
		if !slices.EqualFunc(byName, keys, func(e entry, k Key) bool { return e.Key == k }) {
			t.Errorf("%d events by name, %d by time", len(byName), len(keys))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return keys
}

// A slow disk must not stop listings: apply reads root records without the lock that readers need.
func TestListingsGoOnWhileRootRecordsAreRead(t *testing.T) {
	var j journal
	known, other := newMerchant(t), newMerchant(t)
	x := j.open(t, t.TempDir())
	reading, mayGoOn := make(chan struct{}), make(chan struct{})
	x.Start()
	j.push(t, x, known, 10)
	x.load = func(tx *bolt.Tx, m store.MerchantKey) (*storedTree, error) {
		close(reading)
		<-mayGoOn
		return loadTree(tx, m)
	}
	events := j.commit(other, 10, func(i int) int64 { return int64(i) })
	x.Push(events, events[0].Seq, func() {})
	<-reading
	if x.mu.TryLock() {
		x.mu.Unlock()
		if n := len(list(t, x, known)); n != 10 {
			t.Errorf("%d events, want 10", n)
		}
	} else {
		t.Error("apply holds the lock while it reads root records")
	}
	close(mayGoOn)
	if err := x.Wait(t.Context(), events[0].Seq); err != nil {
		t.Fatal(err)
	}
	if n := len(list(t, x, other)); n != 10 {
		t.Errorf("%d events of the other merchant, want 10", n)
	}
	closeIndex(t, x)
}

// Listings do not wait until a whole batch is applied. What they see is whole chunks.
func TestListingsGoOnWhileABatchIsApplied(t *testing.T) {
	const chunk = 20
	var j journal
	m := newMerchant(t)
	x := j.open(t, t.TempDir())
	seq := uint64(0)
	for batch := 0; ; batch++ {
		if batch == 20 {
			t.Fatal("no listing came between two events of a batch")
		}
		events := make([]codec.Event, 1000*chunk)
		first := seq
		for i := range events {
			if i%chunk == 0 {
				seq++
			}
			events[i] = codec.Event{Merchant: m, Position: store.Position{Seq: seq, Index: uint16(i % chunk)}, Time: int64(i),
				Series: codec.AppendSeries(nil, "cs_a", "Name", false), Size: 100}
		}
		var reading sync.WaitGroup
		var partly, ended atomic.Bool
		for range 2 {
			reading.Go(func() {
				for !ended.Load() {
					n, upTo, err := x.CountFrom(t.Context(), m, math.MinInt64)
					if err != nil || n != upTo*chunk {
						t.Errorf("%d events up to chunk %d: %v", n, upTo, err)
						return
					}
					if upTo > first && upTo < seq {
						partly.Store(true)
					}
				}
			})
		}
		err := x.apply(events, seq)
		ended.Store(true)
		reading.Wait()
		if err != nil {
			t.Fatal(err)
		}
		if partly.Load() {
			break
		}
	}
	closeIndex(t, x)
}

// When its context ends, a query stops waiting for events to be applied, and stops loading nodes.
func TestAnEndedContextEndsAQuery(t *testing.T) {
	var j journal
	m := newMerchant(t)
	dir := t.TempDir()
	x := j.open(t, dir)
	x.Start()
	j.push(t, x, m, 10)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- x.Wait(ctx, 99) }()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Wait gives %v", err)
	}
	s := NewSelection(store.Query{Limit: 10})
	if _, _, err := x.Page(ctx, m, s); !errors.Is(err, context.Canceled) {
		t.Errorf("Page gives %v", err)
	}
	closeIndex(t, x) // merges

	x = j.open(t, dir)
	if err := x.view(t.Context(), m, func(r *reader) error {
		r.ctx = ctx // ends in the middle of the query
		_, err := r.before(Key{Time: math.MaxInt64})
		return err
	}); !errors.Is(err, context.Canceled) {
		t.Errorf("reading a stored node gives %v", err)
	}
	closeIndex(t, x)
}

// Every change wakes the waiters. Those that have reached their chunk return, the others wait again.
func TestWaitersAreWokenByEveryChange(t *testing.T) {
	var p progress
	waits := func(want bool) (changed chan struct{}, err error) {
		t.Helper()
		changed, err = p.reached(7)
		if (changed != nil) != want {
			t.Errorf("the waiter has to wait: %v, want %v", changed != nil, want)
		}
		return changed, err
	}
	woken := func(changed chan struct{}) {
		t.Helper()
		select {
		case <-changed:
		default:
			t.Error("the waiter was not woken")
		}
	}
	first, _ := waits(true)
	p.note(6, nil)
	woken(first)
	second, _ := waits(true)
	p.note(7, nil)
	woken(second)
	if _, err := waits(false); err != nil {
		t.Errorf("after the chunk was applied, waiting gives %v", err)
	}

	p = progress{}
	third, _ := waits(true)
	damaged := errors.New("damaged")
	p.note(0, damaged)
	woken(third)
	if err := p.wait(t.Context(), 7); err != damaged {
		t.Errorf("after a failure, waiting gives %v, want %v", err, damaged)
	}
}

func TestMerchantsWithoutNewEventsAreDroppedFromMemory(t *testing.T) {
	var j journal
	x := j.open(t, t.TempDir())
	for i := range 3 {
		if err := x.Replay(j.commit(newMerchant(t), 5, func(i int) int64 { return int64(i) }), uint64(i+1)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := x.merge(x.freeze()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(x.recent); n != 0 {
		t.Errorf("%d merchants without new events are in memory, want 0", n)
	}
	closeIndex(t, x)
}

// The time bounds of a query are inclusive. They may have nanoseconds, events have microseconds.
func TestSelectionBounds(t *testing.T) {
	at := time.UnixMicro(1000)
	var year1 time.Time // Go's zero time is a bound like any other
	for _, c := range []struct {
		from, to *time.Time
		lo, hi   int64
	}{
		{&at, &at, 1000, 1001},
		{new(at.Add(1)), new(at.Add(1)), 1001, 1001},
		{&at, new(at.Add(-time.Second)), 1000, 1000},
		{nil, nil, math.MinInt64, math.MaxInt64},
		{&year1, &year1, year1.UnixMicro(), year1.UnixMicro() + 1},
	} {
		s := NewSelection(store.Query{From: c.from, To: c.to})
		if s.lo.Time != c.lo || s.hi.Time != c.hi {
			t.Errorf("from %v to %v: %d to %d, want %d to %d", c.from, c.to, s.lo.Time, s.hi.Time, c.lo, c.hi)
		}
	}
}
