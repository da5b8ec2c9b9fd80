package rank

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/testenv"
)

// Trees with several levels of inner nodes, stored and in memory, have the counts that counting gives: whether there are
// many bounds in a node or one, and wherever it is.
func TestDrillSummariesOfHighTrees(t *testing.T) {
	testenv.Drill(t)
	rng := rand.New(rand.NewPCG(1, 2))
	var j journal
	x, m, events := j.open(t, t.TempDir()), newMerchant(t), model{}
	defer closeIndex(t, x)
	for seq := range uint64(120) {
		var batch []codec.Event
		for i := range 1000 {
			tag := []store.TagID{"cs_a", "ss_b"}[rng.IntN(2)]
			batch = append(batch, codec.Event{
				Merchant: m, Position: store.Position{Seq: seq + 1, Index: uint16(i)}, Time: rng.Int64N(1_000_000), Size: 100,
				Series: codec.AppendSeries(nil, tag, fmt.Sprintf("Name%d", rng.IntN(10*rng.IntN(10)+1)), rng.IntN(5) == 0),
			})
		}
		if err := x.Replay(batch, seq+1); err != nil {
			t.Fatal(err)
		}
		events.add(batch)
		if seq == 90 {
			if err := x.merge(x.freeze()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 60 {
		checkCounts(t, rng, x, m, events[m], "high trees")
	}
}

// A summary is of the moment at which it begins. Events that are applied meanwhile, and a merge that begins or ends, do not disturb it.
func TestASummaryIsOfOneMoment(t *testing.T) {
	var j journal
	x, m := j.open(t, t.TempDir()), newMerchant(t)
	defer closeIndex(t, x)
	replay := func(seq uint64) {
		var batch []codec.Event
		for i := range 100 {
			batch = append(batch, codec.Event{
				Merchant: m, Position: store.Position{Seq: seq, Index: uint16(i)}, Time: int64(seq), Size: 100,
				Series: codec.AppendSeries(nil, "cs_a", "PageView", false),
			})
		}
		if err := x.Replay(batch, seq); err != nil {
			t.Fatal(err)
		}
	}
	replay(1)
	if err := x.merge(x.freeze()); err != nil {
		t.Fatal(err)
	}
	replay(2)

	s := newSummary(&store.SummaryQuery{Bucket: store.Daily, By: store.GroupByName, Zone: time.UTC, Now: time.Unix(10, 0)})
	if err := x.view(t.Context(), m, func(r *reader) error {
		replay(3)
		x.freeze()
		replay(4)
		s.readers = []keptReader{{r, math.MinInt64}}
		if err := s.divide(); err != nil {
			return err
		}
		got, err := s.count(t.Context())
		if got.All.Total != 200 || len(got.Groups) != 1 || got.Groups[0].Total != 200 || got.Groups[0].Key != "PageView" {
			t.Errorf("the summary has %d events, want 200; its groups are %v", got.All.Total, got.Groups)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// A flood of made-up names does not hide a name that has one of a hundred events of the overflow series, in each run.
func TestASummaryFindsFrequentNamesInAFlood(t *testing.T) {
	var j journal
	x, m := j.open(t, t.TempDir()), newMerchant(t)
	defer closeIndex(t, x)
	x.LimitSeries(1)
	x.maxRun = 4096
	for seq := range uint64(20) {
		var batch []codec.Event
		for i := range 1000 {
			name := fmt.Sprintf("M%dx%d", seq*7919%1000, i)
			if i%100 == 50 {
				name = "Wish"
			}
			batch = append(batch, codec.Event{Merchant: m, Position: store.Position{Seq: seq + 1, Index: uint16(i)}, Time: int64(seq)*1000 + int64(i),
				Series: codec.AppendSeries(nil, "cs_a", name, false)})
		}
		if err := x.Replay(batch, seq+1); err != nil {
			t.Fatal(err)
		}
		if seq%3 == 0 {
			if err := x.merge(x.freeze()); err != nil {
				t.Fatal(err)
			}
		}
	}
	sum, err := x.Summarize(t.Context(), []Kept{{m, math.MinInt64}}, &store.SummaryQuery{
		Bucket: store.Daily, By: store.GroupByName, Zone: time.UTC, Now: time.Unix(10, 0)})
	if err != nil || sum.All.Total != 20_000 || len(sum.Groups) == 0 || sum.Groups[0].Key != "Wish" || sum.Groups[0].Total != 200 {
		t.Errorf("the summary has %d events in %d groups, %v", sum.All.Total, len(sum.Groups), err)
	}
}
