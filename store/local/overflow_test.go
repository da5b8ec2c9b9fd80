package local

import (
	"fmt"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/local/rank"
)

// The total is exact even when the index does not count the names, and the events are scanned.
func TestMadeUpNamesAreListed(t *testing.T) {
	e := open(t, t.TempDir())
	defer closeEngine(t, e)
	m := store.NewMerchantID()
	var marks []store.Mark
	add := func(tag store.TagID, name string) {
		mark := newMark(m, name, len(marks), []byte("{}"))
		mark.Tag = tag
		marks = append(marks, mark)
	}
	for range 3 {
		add("cs_a", "Purchase")
		add("ss_b", "Purchase")
	}
	for i := range 2 * rank.MaxSeries {
		add("cs_a", fmt.Sprintf("MadeUp%d", i))
	}
	if err := e.Record(ctx, marks); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		asks  string
		query store.Query
		total int
	}{
		{"everything", store.Query{}, 6 + 2*rank.MaxSeries},
		{"a flooded tag", store.Query{Tag: "cs_a"}, 3 + 2*rank.MaxSeries},
		{"a known name", store.Query{Tag: "cs_a", Names: []string{"Purchase"}}, 3},
		{"a tag without made-up names, by name", store.Query{Tag: "ss_b", SortBy: store.ByName}, 3},
		{"a name that has a series and one that has none", store.Query{Names: []string{"Purchase", "MadeUp2000"}}, 7},
		{"everything by name", store.Query{SortBy: store.ByName}, 6 + 2*rank.MaxSeries},
		{"made-up names in a time range, by name", store.Query{
			SortBy: store.ByName, From: new(time.UnixMicro(rank.MaxSeries + 100)), To: new(time.UnixMicro(rank.MaxSeries + 119)),
		}, 20},
	} {
		c.query.Merchant, c.query.Limit = m, 10
		page, err := e.Events(ctx, c.query)
		if err != nil || page.Total != c.total {
			t.Errorf("%s: %d events, %v; want %d", c.asks, page.Total, err, c.total)
		}
	}
}

// A scan takes several steps. It leaves out events that were committed after the query began, even when they fill whole
// steps.
func TestAScanOfSeveralStepsIsAsOfOneMoment(t *testing.T) {
	e := open(t, t.TempDir())
	defer closeEngine(t, e)
	m := store.NewMerchantID()
	key, err := codec.NewMerchantKey(m)
	if err != nil {
		t.Fatal(err)
	}
	const times = scanStep/3 + 30 // three events at each time, so that they fill more than one step
	names := 0
	record := func(from int) {
		marks := make([]store.Mark, 3*times)
		for i := range marks {
			marks[i] = newMark(m, fmt.Sprintf("MadeUp%05d", names), from+i/3, []byte("{}"))
			names++
		}
		if err := e.Record(ctx, marks); err != nil {
			t.Fatal(err)
		}
	}
	record(times)
	last := e.journal.Committed()
	record(0) // these come first in the order of time
	if err := e.index.Wait(ctx, e.journal.Committed()); err != nil {
		t.Fatal(err)
	}

	scan := overflowScan{e, key, rank.NewSelection(store.Query{Merchant: m, SortBy: store.ByName, Limit: 10}), last}
	var found []rank.Key
	if err := scan.scan(ctx, func(_ string, at rank.Key) { found = append(found, at) }); err != nil {
		t.Fatal(err)
	}
	if len(found) != 3*times || found[0].Time != times || found[len(found)-1].Time != 2*times-1 {
		t.Errorf("a scan as of the first commit found %d events, want its %d", len(found), 3*times)
	}

	for _, c := range []struct {
		from, to int
	}{{0, 2*times - 1}, {10, times + 20}, {times - 1, times}, {times, 2*times - 1}} {
		page, err := e.Events(ctx, store.Query{Merchant: m, SortBy: store.ByName, Asc: true, Limit: 3,
			From: new(time.UnixMicro(int64(c.from))), To: new(time.UnixMicro(int64(c.to)))})
		if total := 3 * (c.to - c.from + 1); err != nil || page.Total != total || len(page.Events) != 3 {
			t.Errorf("from %d to %d there are %d events, %v; want %d", c.from, c.to, page.Total, err, total)
		}
	}
}
