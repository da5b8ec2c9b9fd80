package rank

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// model is the events that an index must have, by merchant.
type model map[store.MerchantKey][]codec.Event

func (events model) add(more []codec.Event) {
	for _, e := range more {
		events[e.Merchant] = append(events[e.Merchant], e)
	}
}

// remove removes a merchant's events that gone is true for. It returns how many an index says that it has removed.
func (events model) remove(m store.MerchantKey, gone func(e *codec.Event) bool) (removed uint64) {
	before := len(events[m])
	events[m] = slices.DeleteFunc(slices.Clone(events[m]), func(e codec.Event) bool { return gone(&e) })
	return uint64(before - len(events[m]))
}

func keyOf(e *codec.Event) Key { return Key{e.Time, e.Position} }

// check compares pages, totals and the usage of all merchants with those of the model.
func (events model) check(t *testing.T, rng *rand.Rand, x *Index, when string) {
	t.Helper()
	for m, events := range events {
		bytes := uint64(0)
		for _, e := range events {
			bytes += uint64(e.Size)
		}
		if n, size, err := x.Usage(t.Context(), m); err != nil || n != uint64(len(events)) || size != bytes {
			t.Fatalf("%s: usage is %d events with %d bytes, %v; want %d with %d", when, n, size, err, len(events), bytes)
		}
		want := make([]Key, 0, len(events))
		for _, e := range events {
			want = append(want, keyOf(&e))
		}
		slices.SortFunc(want, Key.compare)
		if got := list(t, x, m); !slices.Equal(got, want) {
			t.Fatalf("%s: %d events, want %d", when, len(got), len(want))
		}
		for range 5 {
			checkRandomPage(t, rng, x, m, events, when)
			checkCounts(t, rng, x, m, events, when)
		}
	}
}

// checkCounts compares a random summary with that of the model.
func checkCounts(t *testing.T, rng *rand.Rand, x *Index, m store.MerchantKey, events []codec.Event, when string) {
	t.Helper()
	q := store.SummaryQuery{By: []store.SummaryGroup{store.Ungrouped, store.GroupByName, store.GroupByTag}[rng.IntN(3)]}
	if len(events) == 0 {
		if sum, err := x.Summarize(t.Context(), []Kept{{m, math.MinInt64}}, &q); err != nil || sum.All.Total > 0 {
			t.Fatalf("%s: the summary without events is %v, %v", when, sum, err)
		}
		return
	}
	bounds := []int64{events[0].Time, events[0].Time, events[0].Time + 1}
	for range 1 + rng.IntN(40) {
		bounds = append(bounds, events[rng.IntN(len(events))].Time+int64(rng.IntN(2)))
	}
	if rng.IntN(2) == 0 {
		bounds = append(bounds, math.MinInt64, math.MaxInt64)
	}
	slices.Sort(bounds)
	if rng.IntN(2) == 0 {
		q.Tag = "ss_b"
	}
	if rng.IntN(2) == 0 {
		for range 3 {
			_, name := codec.SplitSeries(events[rng.IntN(len(events))].Series)
			q.Names = append(q.Names, string(name))
		}
	}
	if rng.IntN(3) == 0 {
		q.Bot = new(rng.IntN(2) == 0)
	}
	kept := int64(math.MinInt64)
	if rng.IntN(3) == 0 {
		kept = events[rng.IntN(len(events))].Time
	}
	want, all := map[string][]int{}, make([]int, len(bounds)-1)
	for _, e := range events {
		if e.Time < kept {
			continue
		}
		tag, name := codec.SplitSeries(string(e.Series))
		if q.Tag != "" && tag != string(q.Tag) || q.Names != nil && !slices.Contains(q.Names, name) || q.Bot != nil && codec.IsBot(e.Series) != *q.Bot {
			continue
		}
		key := map[store.SummaryGroup]string{store.GroupByName: name, store.GroupByTag: tag}[q.By]
		if want[key] == nil {
			want[key] = make([]int, len(bounds)-1)
		}
		for i, b := range bounds[1:] {
			if bounds[i] <= e.Time && e.Time < b {
				want[key][i]++
				all[i]++
			}
		}
	}
	s := newSummary(&q)
	s.bounds = bounds
	sum, err := s.of(t.Context(), x, []Kept{{m, kept}})
	if err != nil || !slices.Equal(sum.All.ByBuckets, all) {
		t.Fatalf("%s: %+v has the counts %v, %v; want %v", when, q, sum.All.ByBuckets, err, all)
	}
	grouped, most := make([]int, len(all)), math.MaxInt
	for _, g := range sum.Groups {
		if !slices.Equal(g.ByBuckets, want[g.Key]) || g.Total > most || g.Total == 0 {
			t.Fatalf("%s: %+v: %q has %d events by %v: %v; want %v", when, q, g.Key, g.Total, bounds, g.ByBuckets, want[g.Key])
		}
		most = g.Total
		for i, n := range g.ByBuckets {
			grouped[i] += n
		}
	}
	if q.By == store.Ungrouped {
		return
	}
	for i, n := range sum.Other.ByBuckets {
		if grouped[i]+n != all[i] {
			t.Fatalf("%s: %+v: bucket %d has %d events, but the groups have %d and the others %d", when, q, i, all[i], grouped[i], n)
		}
	}
	if sum.Other.Total > 0 && (q.Names != nil || q.By == store.GroupByTag) {
		t.Fatalf("%s: %+v: %d events are in no group", when, q, sum.Other.Total)
	}
}

// checkRandomPage compares a page of a random query.
func checkRandomPage(t *testing.T, rng *rand.Rand, x *Index, m store.MerchantKey, events []codec.Event, when string) {
	t.Helper()
	q := store.Query{Asc: rng.IntN(2) == 0, SortBy: store.ByTime, Limit: 1 + rng.IntN(100)}
	if rng.IntN(2) == 0 {
		q.SortBy = store.ByName
	}
	if rng.IntN(3) == 0 {
		q.Tag = []store.TagID{"cs_a", "ss_b"}[rng.IntN(2)]
	}
	if rng.IntN(2) == 0 && len(events) > 0 {
		from, to := time.UnixMicro(events[rng.IntN(len(events))].Time), time.UnixMicro(events[rng.IntN(len(events))].Time)
		q.From, q.To = &from, &to
	}
	if rng.IntN(2) == 0 && len(events) > 0 {
		for range 3 {
			_, name := codec.SplitSeries(events[rng.IntN(len(events))].Series)
			q.Names = append(q.Names, string(name))
		}
	}
	if rng.IntN(3) == 0 {
		q.Bot = new(rng.IntN(2) == 0)
	}
	var want []entry
	for _, e := range events {
		tag, name := codec.SplitSeries(e.Series)
		if q.Tag != "" && string(tag) != string(q.Tag) || q.Names != nil && !slices.Contains(q.Names, string(name)) ||
			q.From != nil && (e.Time < q.From.UnixMicro() || e.Time > q.To.UnixMicro()) ||
			q.Bot != nil && codec.IsBot(e.Series) != *q.Bot {
			continue
		}
		want = append(want, entry{Key: keyOf(&e), name: string(name)})
	}
	slices.SortFunc(want, func(a, b entry) int {
		order := 0
		if q.SortBy == store.ByName {
			if order = cmp.Compare(a.name, b.name); order == 0 {
				return b.Key.compare(a.Key) // the newest first
			}
		} else {
			order = a.Key.compare(b.Key)
		}
		if !q.Asc {
			order = -order
		}
		return order
	})
	total := len(want)
	q.Offset = max(0, []int{rng.IntN(total + 10), 0, total - q.Limit, total - 1, total}[rng.IntN(5)])
	want = want[min(q.Offset, total):min(q.Offset+q.Limit, total)]
	positions := make([]store.Position, 0, len(want))
	for _, e := range want {
		positions = append(positions, e.Position)
	}
	n, page, err := x.Page(t.Context(), m, NewSelection(q))
	if err != nil || n != uint64(total) || !slices.Equal(page, positions) {
		t.Fatalf("%s: the page of %+v has %d events, total %d, %v; want %d, total %d", when, q, len(page), n, err, len(positions), total)
	}
}
