package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/local/faultfs"
	"mtagd/store/testenv"
)

var (
	quiet = slog.New(slog.NewTextHandler(io.Discard, nil))
	ctx   = context.Background()
)

func TestMain(m *testing.M) {
	faultfs.Main()
	os.Exit(m.Run())
}

// testJournal is a journal that keeps the events it hands over.
type testJournal struct {
	*Journal
	mu     sync.Mutex
	handed []codec.Event
}

// open opens the journal in dir.
func open(t *testing.T, dir string) *testJournal {
	t.Helper()
	j, err := Open(dir, Options{Log: quiet, Now: time.Now})
	testenv.Check(t, err)
	return start(t, j)
}

func start(t *testing.T, j *Journal) *testJournal {
	t.Helper()
	tj := &testJournal{Journal: j}
	if err := j.Start(func() error { return nil }, func(events []codec.Event, last uint64, release func()) {
		tj.mu.Lock()
		defer tj.mu.Unlock()
		tj.handed = append(tj.handed, cloned(events)...)
		release()
	}); err != nil {
		t.Fatal(err)
	}
	return tj
}

// cloned copies events with their series.
func cloned(events []codec.Event) []codec.Event {
	events = slices.Clone(events)
	for i := range events {
		events[i].Series = bytes.Clone(events[i].Series)
	}
	return events
}

func closeJournal(t *testing.T, j *testJournal) {
	t.Helper()
	j.Drain()
	testenv.Check(t, j.Close())
}

// newMark returns a mark of tag cs_a; at is its time in µs since 1970.
func newMark(m store.MerchantID, name string, at int, raw []byte) store.Mark {
	return store.Mark{
		Merchant: m, Tag: "cs_a", Identity: store.Identity{MUID: "u-1"},
		Name: name, Time: time.UnixMicro(int64(at)), Raw: raw,
	}
}

// record records n events of a merchant in one call.
func record(t *testing.T, j *testJournal, m store.MerchantID, n int) {
	t.Helper()
	marks := make([]store.Mark, n)
	for i := range marks {
		marks[i] = newMark(m, fmt.Sprintf("Name%d", i%7), i*7919, fmt.Appendf(nil, `{"n":%d}`, i))
	}
	testenv.Check(t, j.Record(ctx, marks))
}

// since returns the events of all chunks after seq.
func since(t *testing.T, j *testJournal, seq uint64) (all []codec.Event) {
	t.Helper()
	all, damaged := sinceWithDamage(t, j, seq)
	for _, d := range damaged {
		t.Error(d)
	}
	return all
}

// sinceWithDamage is since, with the damaged chunks.
func sinceWithDamage(t *testing.T, j *testJournal, seq uint64) (all []codec.Event, damaged []DamagedChunk) {
	t.Helper()
	if err := j.Since(seq, math.MaxUint64, func(events []Event, last uint64) error {
		if events[len(events)-1].Seq != last {
			t.Errorf("the last event of chunk %d is at %v", last, events[len(events)-1].Position)
		}
		for _, e := range events {
			e.Series = bytes.Clone(e.Series)
			all = append(all, e.Event)
		}
		return nil
	}, func(d DamagedChunk) { damaged = append(damaged, d) }); err != nil {
		t.Fatal(err)
	}
	return all, damaged
}

func same(a, b codec.Event) bool {
	return a.Merchant == b.Merchant && a.Position == b.Position && a.Time == b.Time && bytes.Equal(a.Series, b.Series)
}

// HandOver gets the same events that Since returns at a later start.
func TestTheEventsHandedOverAreThoseInTheJournal(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	m, other := store.NewMerchantID(), store.NewMerchantID()
	record(t, j, m, 700) // several chunks
	record(t, j, other, 1)
	middle := j.Committed()
	record(t, j, m, 300)
	last := j.Committed()
	all := since(t, j, 0)
	if !slices.EqualFunc(all, j.handed, same) || len(all) != 1001 {
		t.Errorf("%d events were handed over, %d are in the journal, want 1001", len(j.handed), len(all))
	}
	if got := since(t, j, middle); !slices.EqualFunc(got, all[701:], same) {
		t.Errorf("%d events since the second call, or wrong ones; want the last 300", len(got))
	}
	if got := since(t, j, last); len(got) != 0 {
		t.Errorf("%d events since the last chunk, want 0", len(got))
	}
	closeJournal(t, j)
	j = open(t, dir)
	defer closeJournal(t, j)
	if got := since(t, j, 0); !slices.EqualFunc(got, all, same) {
		t.Errorf("after reopening: %d events, want the same %d as before", len(got), len(all))
	}
	if got := j.Committed(); got != last || all[1000].Seq != last {
		t.Errorf("after reopening: the last chunk is %d, want %d", got, last)
	}
	for seq, want := range map[uint64]bool{last: true, middle: true, last + 1: false} {
		if found := j.HasChunk(seq); found != want {
			t.Errorf("HasChunk(%d) is %v, want %v", seq, found, want)
		}
	}
}

func TestReadStopsBetweenChunksWhenTheContextEnds(t *testing.T) {
	j := open(t, t.TempDir())
	defer closeJournal(t, j)
	m := store.NewMerchantID()
	record(t, j, m, 300)
	record(t, j, m, 1)
	positions := []store.Position{j.handed[0].Position, j.handed[300].Position}
	ctx, cancel := context.WithCancel(t.Context())
	read := 0
	err := j.Read(ctx, positions, func(int, Event) {
		read++
		cancel()
	})
	if !errors.Is(err, context.Canceled) || read != 1 {
		t.Errorf("read %d events, %v; want one and the context's error", read, err)
	}
}

// Who reads the events of some merchants reads no chunk that has none of theirs, except those from before the last start.
func TestScanReadsTheChunksOfAMerchant(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	big, small := store.NewMerchantID(), store.NewMerchantID()
	for i := range 20 {
		record(t, j, big, 3)
		if i == 5 || i == 15 {
			record(t, j, small, 1)
		}
	}
	key, err := store.NewMerchantKey(small)
	testenv.Check(t, err)
	scan := func() (chunks, events int) {
		if err := j.Scan(ctx, 0, math.MaxUint64, NewMerchantSet(key), func(_ uint64, all []Event) bool {
			chunks++
			for _, e := range all {
				if e.Merchant == key {
					events++
				}
			}
			return true
		}); err != nil {
			t.Error(err)
		}
		return chunks, events
	}
	if chunks, events := scan(); chunks != 2 || events != 2 {
		t.Errorf("%d events are found in %d chunks, want 2 in 2", events, chunks)
	}
	closeJournal(t, j)
	j = open(t, dir)
	defer closeJournal(t, j)
	record(t, j, small, 1)
	record(t, j, big, 1)
	if chunks, events := scan(); chunks != 23 || events != 3 {
		t.Errorf("after a start %d events are found in %d chunks, want 3 in 23", events, chunks)
	}
}
