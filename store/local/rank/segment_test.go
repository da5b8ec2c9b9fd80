package rank

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/codec"
	"mtagd/store/testenv"
)

// inMemory returns a reader of a segment with these events.
func inMemory(t *testing.T, events []named) *segmentReader {
	t.Helper()
	var b memoryBlocks
	if err := buildSegment(slices.Clone(events), b.put); err != nil {
		t.Fatal(err)
	}
	return newSegmentReader(&segment{n: len(events), blocks: b}, b)
}

// randomNamed returns n events. Many have the same names, and many the same times.
func randomNamed(rng *rand.Rand, n int) []named {
	events := make([]named, n)
	for i := range events {
		e := named{fmt.Sprintf("Name%d", rng.IntN(n)), entry{Key{rng.Int64N(int64(n)) - int64(n/2), codec.Position{Seq: uint64(i / 7), Index: uint16(i % 7)}}, 3, 0}}
		switch rng.IntN(4) {
		case 0:
			e.name = "Common"
		case 1:
			e.Time = 42
		}
		events[i] = e
	}
	return events
}

// checkSegment compares random counts and runs of a segment with those of its events.
func checkSegment(t *testing.T, rng *rand.Rand, s *segmentReader, events []named) {
	t.Helper()
	events = slices.Clone(events)
	slices.SortFunc(events, func(a, b named) int { return a.compare(&b) })
	for i := range events {
		e, err := s.event(i)
		if err != nil || e != events[i] {
			t.Fatalf("event %d of %d is %v, %v; want %v", i, len(events), e, err, events[i])
		}
	}
	w := s.wavelet()
	for range 200 {
		k := events[rng.IntN(len(events))]
		k.Index += uint16(rng.IntN(2))
		from, to := events[rng.IntN(len(events))].Time, events[rng.IntN(len(events))].Time+1
		if rng.IntN(4) == 0 {
			to = math.MaxInt64
		}
		if from > to {
			from, to = math.MinInt64, from
		}
		var inRange []int
		less, before := 0, 0
		for rank, e := range events {
			if e.compare(&k) < 0 {
				less++
			}
			if e.Time < from {
				before++
			}
			if from <= e.Time && e.Time < to {
				inRange = append(inRange, rank)
			}
		}
		rank, err := s.rank(&k)
		if err != nil || rank != less {
			t.Fatalf("%d events before %v, %v; want %d", rank, k, err, less)
		}
		start, err := s.before(from)
		if err != nil || start != before {
			t.Fatalf("%d events before the time %d, %v; want %d", start, from, err, before)
		}
		end, err := s.before(to)
		if err != nil || end != before+len(inRange) {
			t.Fatalf("%d events before the time %d, %v; want %d", end, to, err, before+len(inRange))
		}
		ranks, err := s.ranks(start, end)
		if slices.Sort(ranks); err != nil || !slices.EqualFunc(ranks, inRange, func(a uint32, b int) bool { return int(a) == b }) {
			t.Fatalf("ranks of the events with %d ≤ time < %d: %v, %v; want %v", from, to, ranks, err, inRange)
		}
		want, _ := slices.BinarySearch(inRange, less)
		if n, err := w.below(start, end, less); err != nil || n != want {
			t.Fatalf("%d events of the time range are before %v, %v; want %d", n, k, err, want)
		}
		skip := rng.IntN(len(inRange) + 1)
		left := rng.IntN(150)
		var got []int
		if err := w.walk(start, end, skip, left, func(rank int) error {
			got = append(got, rank)
			return nil
		}); err != nil || !slices.Equal(got, inRange[skip:min(skip+left, len(inRange))]) {
			t.Fatalf("the run of %d events after %d of %d is wrong, %v", left, skip, len(inRange), err)
		}
	}
}

func TestDrillASegmentCountsAndFindsItsEvents(t *testing.T) {
	testenv.Drill(t)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{1, 2, 3, 63, 64, 65, 1000, 1024, 5000, 40_000} {
		events := randomNamed(rng, n)
		checkSegment(t, rng, inMemory(t, events), events)
	}
}

func TestDrillMergedSegmentsHaveTheEventsOfAll(t *testing.T) {
	testenv.Drill(t)
	rng := rand.New(rand.NewPCG(3, 4))
	for _, sizes := range [][]int{{1, 1}, {64, 1, 1024}, {3000, 5, 700, 1}, {33_000, 8_000}, {500}} {
		total := 0
		for _, n := range sizes {
			total += n
		}
		events := randomNamed(rng, total)
		rng.Shuffle(total, func(i, j int) { events[i], events[j] = events[j], events[i] })
		var parts []*segmentReader
		at := 0
		for _, n := range sizes {
			parts = append(parts, inMemory(t, events[at:at+n]))
			at += n
		}
		var b memoryBlocks
		if n, err := mergeSegments(parts, b.put); err != nil || n != total {
			t.Fatalf("%d events are written, %v; want %d", n, err, total)
		}
		checkSegment(t, rng, newSegmentReader(&segment{n: total}, b), events)
	}
}

// However many events are added, and in whatever portions, there are few segments, and no event is written again often.
func TestCompactionKeepsSegmentsFew(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for name, portion := range map[string]func() int{
		"equal":        func() int { return 1000 },
		"nearly equal": func() int { return 990 + rng.IntN(20) },
		"any":          func() int { return 1 + rng.IntN(2000) },
	} {
		var segments []*segment
		events, written := 0, 0
		for range 2000 {
			n := portion()
			events, written = events+n, written+n
			segments = append(segments, &segment{n: n, tag: 1})
			for from := compactionDue(segments, maxStoredSegment); from != nil; from = compactionDue(segments, maxStoredSegment) {
				merged := mergedSegment(from)
				written += merged.n
				segments = replaceSegments(segments, from, merged)
			}
			if len(segments) > 15 {
				t.Fatalf("%s portions: %d segments have %d events", name, len(segments), events)
			}
		}
		if written > 12*events {
			t.Errorf("%s portions: each event is written %d times", name, written/events)
		}
	}
}

// An earlier version wrote the events of several tags once more to segments of their own. They disturb nothing, and go.
func TestSegmentsOfSeveralTagsAreDeleted(t *testing.T) {
	j := journal{names: 200, maxSeries: 3}
	x, m := j.open(t, t.TempDir()), newMerchant(t)
	defer closeIndex(t, x)
	if err := x.Replay(j.commit(m, 1000, func(i int) int64 { return int64(i) }), 1); err != nil {
		t.Fatal(err)
	}
	if err := x.merge(x.freeze()); err != nil {
		t.Fatal(err)
	}
	want := list(t, x, m)
	w := newMerger(x.db, x.commit)
	if err := w.run(func() error {
		id, err := w.newSegment(m, byCompaction)
		if err != nil {
			return err
		}
		stored, err := loadSegments(w.tx, m)
		if err != nil {
			return err
		}
		var parts []*segmentReader
		for _, s := range stored.segments {
			parts = append(parts, newSegmentReader(s, &queriedBlocks{&reader{ctx: t.Context(), m: m, blocks: w.blocks.Cursor()}, s.id, map[uint32][]byte{}}))
		}
		if len(parts) < 2 {
			t.Errorf("there are %d segments, want those of two tags", len(parts))
		}
		n, err := mergeSegments(parts, w.putBlock(m, id))
		if err != nil {
			return err
		}
		return w.useSegments(m, []*segment{{id: id, n: n, tag: mixedTags}})
	}); err != nil {
		t.Fatal(err)
	}
	expect := func(when string, segments int) {
		t.Helper()
		if got := list(t, x, m); !slices.Equal(got, want) {
			t.Errorf("%s: %d events, want %d", when, len(got), len(want))
		}
		var stored *storedSegments
		if err := view(x.db, func(tx *bolt.Tx) (err error) {
			stored, err = loadSegments(tx, m)
			return err
		}); err != nil || len(stored.segments) != segments {
			t.Errorf("%s: %d segments, %v; want %d", when, len(stored.segments), err, segments)
		}
		if err := x.Verify(t.Context(), Check{
			Wrong: func(_ codec.MerchantKey, err error) { t.Errorf("%s: %v", when, err) },
			Event: func(codec.MerchantKey, Key, string) {}, Tags: func(codec.MerchantKey, []string) {}, Read: func(uint64, uint64) {},
		}); err != nil {
			t.Error(err)
		}
	}
	expect("before the compaction", 3)
	x.compactor.compactAll(t.Context())
	expect("after the compaction", 2)
	checkNothingLeftBehind(t, x)
}
