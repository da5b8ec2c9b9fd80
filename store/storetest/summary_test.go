package storetest

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

var everyGroup = []store.SummaryGroup{store.Ungrouped, store.GroupByName, store.GroupByTag}

var summaryTests = []test{
	{"a merchant without events has no buckets without a range, and empty ones with it", func(t *testing.T, b *bed) {
		oracles, _ := newShops(b, 1)
		for _, by := range everyGroup {
			q := store.SummaryQuery{Merchants: []store.MerchantID{oracles[0].merchant, store.NewMerchantID()}, Bucket: store.Daily, By: by, Now: start}
			expectSummary(t, b, oracles, q)
			q.From, q.To = &start, new(start.AddDate(0, 0, 3))
			expectSummary(t, b, oracles, q)
		}
	}},
	{"random summaries of random events have the counts that counting gives, at once and after reopening", func(t *testing.T, b *bed) {
		r := testenv.Random(t)
		oracles, tags := newShops(b, 3)
		for range 12 {
			var marks []store.Mark
			for range 1 + r.IntN(150) {
				i := r.IntN(len(oracles))
				marks = append(marks, oracles[i].mark(pick(r, tags[i]...), randomName(r), randomTime(r)))
			}
			b.record(marks)
			expectRandomSummaries(t, b, r, oracles, tags, 1)
		}
		for range b.reopened {
			expectRandomSummaries(t, b, r, oracles, tags, 12)
		}
	}},
	{"made-up names do not change the counts of the others, nor hide the names of a shop", func(t *testing.T, b *bed) {
		r := testenv.Random(t)
		oracles, tags := newShops(b, 1)
		o, n := oracles[0], 0
		for round := range 3 {
			var marks []store.Mark
			for range 450 {
				n++
				marks = append(marks, o.mark(pick(r, tags[0]...), fmt.Sprintf("%c%dMadeUp", 'A'+n*7%26, n), randomTime(r)))
			}
			for range 450 * min(1, round) { // the first names are made up
				marks = append(marks, o.mark(pick(r, tags[0]...), randomName(r), randomTime(r)))
			}
			b.record(marks)
			expectRandomSummaries(t, b, r, oracles, tags, 3)
			b.reopen()
		}
		sum, err := b.Summary(t.Context(), store.SummaryQuery{Merchants: []store.MerchantID{o.merchant}, By: store.GroupByName, Now: start})
		if err != nil || len(sum.Groups) != store.MaxSummaryGroups || sum.Groups[0].Key != "PageView" || sum.Other.Total == 0 {
			t.Errorf("the summary is %v, %v; want %d names, PageView first", sum, err, store.MaxSummaryGroups)
		}
		expectRandomSummaries(t, b, r, oracles, tags, 6)
	}},
	{"the usage of a merchant is that of its events, at once and after reopening", func(t *testing.T, b *bed) {
		oracles, tags := newShops(b, 2)
		ids := []store.MerchantID{oracles[0].merchant, oracles[1].merchant, store.NewMerchantID()}
		var marks []store.Mark
		for i := range 300 {
			marks = append(marks, oracles[0].mark(tags[0][i%2], "PageView", start))
		}
		b.record(marks)
		for range b.reopened {
			usage, err := b.Usage(t.Context(), ids)
			if err != nil || len(usage) != 3 || usage[0].Events != 300 || usage[1] != (store.Usage{}) || usage[2] != (store.Usage{}) {
				t.Fatalf("usage: %v, %v", usage, err)
			}
			raw := 0
			for _, m := range marks {
				raw += len(m.Raw) + len(m.Identity.MUID) + len(m.Name) + len(m.Tag)
			}
			if got := int(usage[0].Bytes); got < raw || got > raw+50*len(marks) {
				t.Errorf("%d bytes, want %d and a few for each event", got, raw)
			}
		}
	}},
	{"too many buckets are refused, but an old event does not make too many", func(t *testing.T, b *bed) {
		oracles, tags := newShops(b, 1)
		b.record([]store.Mark{
			oracles[0].mark(tags[0][0], "Old", time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)), oracles[0].mark(tags[0][1], "New", start),
		})
		for _, zone := range []*time.Location{nil, time.FixedZone("", 5*3600+2700)} {
			for _, by := range everyGroup {
				q := store.SummaryQuery{Merchants: []store.MerchantID{oracles[0].merchant}, Bucket: store.Hourly, Now: start, By: by, Zone: zone}
				expectSummary(t, b, oracles, q)
				q.From = new(time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC))
				if _, err := b.Summary(t.Context(), q); store.KindOf(err) != store.KindInvalid {
					t.Errorf("hours since year 1: %v, want KindInvalid", err)
				}
			}
		}
	}},
	{"an old event does not make a summary of many merchants too much, and events outside of the range do not count", func(t *testing.T, b *bed) {
		oracles, tags := newShops(b, 6)
		q := store.SummaryQuery{Now: start}
		for i, o := range oracles {
			q.Merchants = append(q.Merchants, o.merchant)
			var marks []store.Mark
			for day := range 5 {
				marks = append(marks, o.mark(tags[i][0], "New", start.AddDate(0, 0, -day)), o.mark(tags[i][1], "PageView", start.AddDate(0, -day, 0)))
			}
			b.record(append(marks, o.mark(tags[i][0], "Old", time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC))))
		}
		kept := oracles[5] // what is past its retention is not counted, even before it is removed
		b.changeMerchant(kept.merchant, func(m *store.Merchant) { m.Retention = 60 })
		cutoff, _ := store.Retention(60).Cutoff(b.clock.Now())
		kept.events = slices.DeleteFunc(kept.events, func(k *known) bool { return k.time.Before(cutoff) })
		for _, q.Bucket = range []store.Bucket{store.NoBucket, store.Hourly, store.Daily, store.Monthly} {
			for _, q.By = range everyGroup {
				for _, q.To = range []*time.Time{nil, new(start.AddDate(0, 0, -3)), new(start.AddDate(-1, 0, 0))} {
					if _, err := b.Summary(t.Context(), q); err != nil {
						t.Errorf("by %q and %q up to %v: %v", q.Bucket, q.By, q.To, err)
					}
					expectSummary(t, b, oracles, q)
				}
			}
		}
	}},
}

var totalTests = []test{
	{"a summary and a page have the same total while events come in", func(t *testing.T, b *bed) {
		oracles, tags := newShops(b, 1)
		m := oracles[0].merchant
		for i := range 20 {
			var marks []store.Mark
			for range 50 {
				marks = append(marks, oracles[0].mark(tags[0][i%2], "PageView", start.Add(time.Duration(i)*time.Hour)))
			}
			recorded := make(chan error)
			go func() { recorded <- b.Record(t.Context(), marks) }()
			sum, err := b.Summary(t.Context(), store.SummaryQuery{
				Merchants: []store.MerchantID{m}, Bucket: store.Hourly, By: store.GroupByTag, Now: start,
			})
			groups := 0
			for _, g := range sum.Groups {
				groups += g.Total
			}
			if err != nil || groups != sum.All.Total || sum.All.Total%50 != 0 {
				t.Errorf("the groups have %d of %d events, %v", groups, sum.All.Total, err)
			}
			testenv.Check(t, <-recorded)
			if _, total := b.list(m); total != 50*(i+1) {
				t.Errorf("%d events, want %d", total, 50*(i+1))
			}
			expectSummary(t, b, oracles, store.SummaryQuery{Merchants: []store.MerchantID{m}, Now: start})
		}
	}},
}

// expectRandomSummaries compares so many random summaries, until one is wrong.
func expectRandomSummaries(t *testing.T, b *bed, r *rand.Rand, oracles []*oracle, tags [][]store.TagID, queries int) {
	t.Helper()
	for range testenv.Rounds(queries) {
		i := r.IntN(len(oracles))
		one := randomQuery(r, oracles[i], tags[i])
		q := store.SummaryQuery{
			Merchants: []store.MerchantID{oracles[i].merchant}, Tag: one.Tag, Names: one.Names, From: one.From, To: one.To, Bot: one.Bot,
			Bucket: pick(r, store.NoBucket, store.Hourly, store.Daily, store.Monthly), Now: start, By: pick(r, everyGroup...),
			Zone: pick(r, nil, time.FixedZone("", 5*3600+1800)),
		}
		for r.IntN(2) == 0 {
			q.Merchants = append(q.Merchants, pick(r, oracles...).merchant)
		}
		if !expectSummary(t, b, oracles, q) {
			return
		}
	}
}

// expectSummary compares a summary with what counting the oracles' events gives, and reports whether it is right.
func expectSummary(t *testing.T, b *bed, oracles []*oracle, q store.SummaryQuery) bool {
	t.Helper()
	sum, err := b.Summary(t.Context(), q)
	want, groups, refused := summaryOf(oracles, q)
	if refused != nil {
		if store.KindOf(err) != store.KindOf(refused) {
			t.Errorf("%+v: %v, want %v", q, err, refused)
		}
		return store.KindOf(err) == store.KindOf(refused)
	}
	if err != nil || !slices.EqualFunc(sum.Starts, want.Starts, time.Time.Equal) || !reflect.DeepEqual(sum.All, want.All) {
		t.Errorf("%+v: %v\n got %v\nwant %v", q, err, sum, want)
		return false
	}
	if q.By == store.Ungrouped {
		return sum.Groups == nil && sum.Other.Total == 0
	}
	// The groups are exact, and all events of the others are in Other.
	left := store.Counts{Total: sum.All.Total, ByBuckets: slices.Clone(sum.All.ByBuckets)}
	for i, g := range sum.Groups {
		if !reflect.DeepEqual(g.Counts, groups[g.Key]) {
			t.Errorf("%+v: group %q is %v, want %v", q, g.Key, g.Counts, groups[g.Key])
			return false
		}
		if i > 0 && cmp.Or(cmp.Compare(sum.Groups[i-1].Total, g.Total), -cmp.Compare(sum.Groups[i-1].Key, g.Key)) < 0 {
			t.Errorf("%+v: group %q is before the larger %q", q, sum.Groups[i-1].Key, g.Key)
			return false
		}
		left.Total -= g.Total
		for i, n := range g.ByBuckets {
			left.ByBuckets[i] -= n
		}
	}
	if !reflect.DeepEqual(sum.Other, left) {
		t.Errorf("%+v: other is %v, want %v", q, sum.Other, left)
		return false
	}
	names := map[string]bool{}
	for _, o := range oracles {
		for _, k := range o.events {
			names[k.name] = true
		}
	}
	complete := q.Names != nil || q.By == store.GroupByTag || len(names) <= store.MaxSummaryGroups
	if complete && len(sum.Groups) != min(len(groups), store.MaxSummaryGroups) {
		t.Errorf("%+v: %d groups, want %d", q, len(sum.Groups), len(groups))
		return false
	}
	return true
}

// summaryOf counts the oracles' events.
func summaryOf(oracles []*oracle, q store.SummaryQuery) (sum store.Summary, groups map[string]store.Counts, err error) {
	var first, last *time.Time
	var counted []*known
	for _, o := range oracles {
		if !slices.Contains(q.Merchants, o.merchant) {
			continue
		}
		if sorted := o.inOrder(order{store.ByTime, true}); len(sorted) > 0 {
			if at := &sorted[0].time; first == nil || at.Before(*first) {
				first = at
			}
			if at := &sorted[len(sorted)-1].time; last == nil || at.After(*last) {
				last = at
			}
		}
		matching, _ := o.page(store.Query{Tag: q.Tag, Names: q.Names, From: q.From, To: q.To, Bot: q.Bot, Limit: len(o.events), SortBy: store.ByTime, Asc: true})
		counted = append(counted, matching...)
	}
	var end time.Time
	if sum.Starts, end, err = q.Starts(first, last); err != nil || len(sum.Starts) == 0 {
		return sum, nil, err
	}
	groups = map[string]store.Counts{}
	sum.All.ByBuckets = make([]int, len(sum.Starts))
	for _, k := range counted {
		i, at := slices.BinarySearchFunc(sum.Starts, k.time, time.Time.Compare)
		if !at {
			i = max(0, i-1) // the bucket that began before
		}
		if !k.time.Before(end) {
			continue // without To, the range ends with the last bucket
		}
		key := ""
		switch q.By {
		case store.GroupByName:
			key = k.name
		case store.GroupByTag:
			key = string(k.tag)
		}
		c := groups[key]
		if c.ByBuckets == nil {
			c.ByBuckets = make([]int, len(sum.Starts))
		}
		c.Total++
		c.ByBuckets[i]++
		groups[key] = c
		sum.All.Total++
		sum.All.ByBuckets[i]++
	}
	return sum, groups, nil
}
