package local

import (
	"fmt"
	"testing"
	"time"

	"mtagd/store"
)

// Whoever can send events can make up names. What a merchant usually asks for must not get slower
// by that: known names and whole tags are counted, only made-up names and sorting by name are looked for.
func TestMadeUpNamesDoNotSlowDownTheOthers(t *testing.T) {
	e := open(t, t.TempDir())
	defer closeEngine(t, e)
	m, key := newMerchant(t)
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
	for i := range 2 * maxSeries {
		add("cs_a", fmt.Sprintf("MadeUp%d", i))
	}
	if err := e.Record(ctx, marks); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		asks    string
		query   store.Query
		total   int
		counted bool
	}{
		{"for everything", store.Query{}, 6 + 2*maxSeries, true},
		{"for a flooded tag", store.Query{Tag: "cs_a"}, 3 + 2*maxSeries, true},
		{"for a known name", store.Query{Tag: "cs_a", Names: []string{"Purchase"}}, 3, true},
		{"for a tag without made-up names, by name", store.Query{Tag: "ss_b", SortBy: store.ByName}, 3, true},
		{"for a name that has a series and one that has none", store.Query{Names: []string{"Purchase", "MadeUp2000"}}, 7, false},
		{"for everything by name", store.Query{SortBy: store.ByName}, 6 + 2*maxSeries, false},
		{"for made-up names of some time by name", store.Query{SortBy: store.ByName, From: time.UnixMicro(maxSeries + 100), To: time.UnixMicro(maxSeries + 119)}, 20, false},
	} {
		c.query.Merchant, c.query.Limit = m, 10
		page, err := e.Events(ctx, c.query)
		if err != nil || page.Total != c.total {
			t.Errorf("who asks %s gets %d events, %v; want %d", c.asks, page.Total, err, c.total)
		}
		if err := e.index.view(key, func(r *reader) error {
			_, _, counted, err := r.page(newSelection(c.query))
			if counted != c.counted {
				t.Errorf("who asks %s: counted is %v", c.asks, counted)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// A scan takes several steps, and what was committed after the query may fill whole ones.
func TestAScanTakesSteps(t *testing.T) {
	e := open(t, t.TempDir())
	defer closeEngine(t, e)
	m, key := newMerchant(t)
	const times = scanStep/3 + 30 // of three events each
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
	upTo, _ := e.committer.state()
	record(0) // which come first in the order of time
	committed, _ := e.committer.state()
	if err := e.index.wait(committed); err != nil {
		t.Fatal(err)
	}

	s := newSelection(store.Query{Merchant: m, SortBy: store.ByName, Limit: 10})
	var found []entry
	if err := e.scan(ctx, key, s, upTo, func(_ string, at entry) { found = append(found, at) }); err != nil {
		t.Fatal(err)
	}
	if len(found) != 3*times || found[0].time != times || found[len(found)-1].time != 2*times-1 {
		t.Errorf("a scan as of before the second commit found %d events, want %d", len(found), 3*times)
	}

	for _, c := range []struct {
		from, to int
	}{{0, 2*times - 1}, {10, times + 20}, {times - 1, times}, {times, 2*times - 1}} {
		page, err := e.Events(ctx, store.Query{Merchant: m, SortBy: store.ByName, Asc: true, Limit: 3,
			From: time.UnixMicro(int64(c.from)), To: time.UnixMicro(int64(c.to))})
		if total := 3 * (c.to - c.from + 1); err != nil || page.Total != total || len(page.Events) != 3 {
			t.Errorf("from %d to %d there are %d events, %v; want %d", c.from, c.to, page.Total, err, total)
		}
	}
}
