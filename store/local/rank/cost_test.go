package rank

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/testenv"
)

// withMadeUpNames returns an index with events of 10 common names and, at the same times, one of each made-up name. All
// events are stored. madeUpFirst means that the made-up names come before the common ones, so that none of these is counted.
func withMadeUpNames(t *testing.T, m store.MerchantKey, common, madeUp int, madeUpFirst bool) *Index {
	t.Helper()
	rng := rand.New(rand.NewPCG(7, 8))
	var j journal
	x := j.open(t, t.TempDir())
	x.LimitSeries(30)
	x.maxRun = 16 << 10
	var batch []codec.Event
	seq := uint64(0)
	flush := func() {
		seq++
		for i := range batch {
			batch[i].Position = store.Position{Seq: seq, Index: uint16(i)}
		}
		if err := x.Replay(batch, seq); err != nil {
			t.Fatal(err)
		}
		batch = batch[:0]
	}
	merge := func() {
		if err := x.merge(x.freeze()); err != nil {
			t.Fatal(err)
		}
	}
	add := func(tag store.TagID, name string, at int64) {
		batch = append(batch, codec.Event{Merchant: m, Time: at, Series: codec.AppendSeries(nil, tag, name, false)})
		if len(batch) == 1000 {
			flush()
		}
	}
	tags := []store.TagID{"cs_a", "ss_b"}
	parts := []func(){
		func() {
			for i := range common {
				add(tags[i%2], fmt.Sprintf("Common%d", i%10), int64(i)*1000)
			}
		},
		func() {
			for i := range madeUp {
				add(tags[i%2], fmt.Sprintf("%cMadeUp%d", 'A'+i*7%26, i), int64(i)*int64(common)*1000/int64(madeUp)+rng.Int64N(1000))
				if len(batch) == 0 && i%5000 == 4999 {
					merge()
				}
			}
		},
	}
	if madeUpFirst {
		parts[0], parts[1] = parts[1], parts[0]
	}
	for _, part := range parts {
		part()
		flush()
		merge()
	}
	return x
}

// Whoever can send events can make up names. However many there are, each page loads few nodes, and keeps to
// that in every order, with every filter, everywhere in the listing.
func TestDrillMadeUpNamesDoNotMakePagesCostly(t *testing.T) {
	testenv.Drill(t)
	const common = 20_000
	m := newMerchant(t)
	for _, madeUpFirst := range []bool{false, true} {
		x := withMadeUpNames(t, m, common, 100_000, madeUpFirst)
		from, to := time.UnixMicro(common/4*1000), time.UnixMicro(common/2*1000)
		for name, filter := range map[string]store.Query{
			"everything":               {},
			"a tag":                    {Tag: "ss_b"},
			"a range":                  {From: &from, To: &to},
			"a moment":                 {From: &from, To: new(from.Add(3 * time.Millisecond))},
			"a short range":            {From: &from, To: new(from.Add(200 * time.Millisecond))},
			"a tag in a range":         {Tag: "cs_a", From: &from, To: &to},
			"common names":             {Names: []string{"Common3", "Common5"}},
			"common names in a range":  {Names: []string{"Common3", "Common5"}, From: &from, To: &to},
			"made-up names":            {Names: []string{"AMadeUp0", "HMadeUp1", "Unknown"}},
			"all names, tag and range": {Names: []string{"Common2", "Common4", "AMadeUp0", "QMadeUp32"}, Tag: "cs_a", From: &from, To: &to},
		} {
			for _, by := range []store.SortKey{store.ByTime, store.ByName} {
				for _, asc := range []bool{true, false} {
					for place := range 3 {
						filter.SortBy, filter.Asc, filter.Limit = by, asc, 50
						if err := x.view(t.Context(), m, func(r *reader) error {
							total, _, err := r.page(NewSelection(filter))
							if err != nil {
								return err
							}
							q := filter
							q.Offset = max(0, place*(int(total)-q.Limit)/2)
							r.loads = 0
							clear(r.loaded)
							_, page, err := r.page(NewSelection(q))
							if len(page) == 0 {
								t.Errorf("%s: the page is empty", name)
							}
							// Half of the events are of the shop's names, so a page of them alone loads up to 50 leaves.
							most := 200
							if by == store.ByName && filter.Names == nil {
								most += 20 * len(r.runs)
								for _, of := range r.runs {
									if lo, hi := NewSelection(q).lo, NewSelection(q).hi; of.overlaps(lo, hi) && !of.within(lo, hi) {
										most += int(of.root.counts.of(nil))/leafEntries + 10
									}
								}
								if most > 200+20*12+3*150 {
									t.Errorf("%s: %d runs", name, len(r.runs))
								}
							}
							if r.loads > most {
								t.Errorf("%s by %s, ascending %v, place %d of %d, made-up names first %v: %d nodes were loaded for %d events",
									name, by, asc, q.Offset, total, madeUpFirst, r.loads, len(page))
							}
							return err
						}); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		}
		closeIndex(t, x)
	}
}

// A page by name loads the nodes of its events once, whichever end of the listing comes first.
func TestAPageByNameLoadsItsNodesOnce(t *testing.T) {
	const common = 20_000
	m := newMerchant(t)
	x := withMadeUpNames(t, m, common, 0, false)
	defer closeIndex(t, x)
	for _, names := range [][]string{nil, {"Common3"}, {"Common3", "Common5"}} {
		loads := map[bool]int{}
		for _, asc := range []bool{true, false} {
			for place := range 20 {
				q := store.Query{Names: names, SortBy: store.ByName, Asc: asc, Limit: 50, Offset: place * 100}
				if err := x.view(t.Context(), m, func(r *reader) error {
					_, _, err := r.page(NewSelection(q))
					loads[asc] += r.loads
					return err
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
		if up, down := loads[true], loads[false]; up > down+20 {
			t.Errorf("names %v: %d nodes were loaded in ascending order, %d in descending order", names, up, down)
		}
	}
}

// A merchant's usage is known as of now, whether its events are in memory, being merged or stored.
func TestUsageCountsAllEvents(t *testing.T) {
	j := journal{names: 40, maxSeries: 3}
	m := newMerchant(t)
	dir := t.TempDir()
	x := j.open(t, dir)
	expect := func(when string, want uint64) {
		t.Helper()
		if events, bytes, err := x.Usage(t.Context(), m); err != nil || events != want || bytes != 100*want {
			t.Errorf("%s: %d events with %d bytes, %v; want %d", when, events, bytes, err, want)
		}
	}
	expect("no events", 0)
	replay := func(n int) {
		t.Helper()
		if err := x.Replay(j.commit(m, n, func(i int) int64 { return int64(i) }), uint64(len(j.commits))); err != nil {
			t.Fatal(err)
		}
	}
	replay(300)
	expect("in memory", 300)
	frozen := x.freeze()
	replay(50)
	expect("before a merge", 350)
	if err := x.merge(frozen); err != nil {
		t.Fatal(err)
	}
	expect("after a merge", 350)
	if err := x.merge(x.freeze()); err != nil {
		t.Fatal(err)
	}
	x.freeze() // which drops the merchant from memory
	expect("stored", 350)
	replay(7)
	closeIndex(t, x) // without a merge, as a kill
	x = j.open(t, dir)
	expect("after a kill", 357)
	closeIndex(t, x)
}

// A flood of made-up names writes each event few times, in order, and leaves few runs.
func TestDrillAFloodOfMadeUpNamesIsWrittenFewTimes(t *testing.T) {
	testenv.Drill(t)
	rng := rand.New(rand.NewPCG(9, 10))
	var j journal
	x, m := j.open(t, t.TempDir()), newMerchant(t)
	defer closeIndex(t, x)
	x.LimitSeries(1)
	x.maxRun = 16 << 10
	const n, batch = 100_000, 1000
	for seq := range uint64(n / batch) {
		events := make([]codec.Event, batch)
		for i := range events {
			events[i] = codec.Event{Merchant: m, Position: store.Position{Seq: seq + 1, Index: uint16(i)}, Time: int64(seq)*batch + int64(i),
				Series: codec.AppendSeries(nil, "cs_a", fmt.Sprintf("M%016x", rng.Uint64()), false)}
		}
		if err := x.Replay(events, seq+1); err != nil {
			t.Fatal(err)
		}
		if err := x.merge(x.freeze()); err != nil {
			t.Fatal(err)
		}
	}
	// Each event takes about 35 bytes in the tree of times and a run, and is written about four times: for 1,000, 2,000 … 16,000 events.
	if stats := x.db.Stats(); stats.TxStats.GetPageAlloc() > 220*n {
		t.Errorf("%d bytes an event were written", stats.TxStats.GetPageAlloc()/n)
	}
	if err := x.view(t.Context(), m, func(r *reader) error {
		if len(r.runs) > 3*n/x.maxRun+5 {
			t.Errorf("%d runs", len(r.runs))
		}
		for i := range r.runs {
			if i > 0 && r.runs[i].from.compare(r.runs[i-1].to) <= 0 {
				t.Errorf("run %d begins before the previous one ends", i)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
