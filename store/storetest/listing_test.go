package storetest

import (
	"fmt"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

var listingTests = []test{
	{"a merchant or a tag without events has an empty page", func(t *testing.T, b *bed) {
		oracles, tags := newShops(b, 2)
		b.record([]store.Mark{oracles[0].mark(tags[0][0], "Purchase", start)})
		for _, way := range everyOrder {
			for _, tag := range []store.TagID{"", tags[0][0], tags[1][0], tags[1][1], "cs_unknown"} {
				oracles[1].expect(t, b, store.Query{Tag: tag, SortBy: way.by, Asc: way.asc, Limit: 12})
			}
			for _, tag := range []store.TagID{"", tags[0][0], tags[0][1], tags[1][0]} {
				oracles[0].expect(t, b, store.Query{Tag: tag, SortBy: way.by, Asc: way.asc, Limit: 12})
			}
			nobody := oracle{merchant: store.NewMerchantID()}
			nobody.expect(t, b, store.Query{SortBy: way.by, Asc: way.asc, Limit: 12})
		}
	}},
	{"random queries on random events give the page that sorting gives, at once and after reopening", func(t *testing.T, b *bed) {
		r := testenv.Random(t)
		oracles, tags := newShops(b, 2)
		for range 12 {
			var marks []store.Mark
			for range 1 + r.IntN(80) {
				i := r.IntN(len(oracles))
				marks = append(marks, oracles[i].mark(pick(r, tags[i]...), randomName(r), randomTime(r)))
			}
			b.record(marks)
			i := r.IntN(len(oracles))
			expectRandom(t, b, r, oracles[i], tags[i], 3)
		}
		for range b.reopened {
			for i, o := range oracles {
				expectRandom(t, b, r, o, tags[i], 20)
				for _, way := range everyOrder {
					expectAllPages(t, b, o, store.Query{SortBy: way.by, Asc: way.asc, Names: []string{"Purchase", "P"}}, 37)
					expectAllPages(t, b, o, store.Query{SortBy: way.by, Asc: way.asc}, 100)
				}
			}
			if t.Failed() {
				return
			}
		}
	}},
	{"events of one time are listed by id, ascending or descending like the times", func(t *testing.T, b *bed) {
		r := testenv.Random(t)
		oracles, tags := newShops(b, 1)
		o := oracles[0]
		for range 30 {
			var marks []store.Mark
			for j := range 10 {
				marks = append(marks, o.mark(tags[0][j%2], pick(r, "A", "B", "C"), start))
			}
			b.record(marks)
		}
		for range b.reopened {
			expectEveryOrder(t, b, o, 7)
			for _, way := range everyOrder {
				expectAllPages(t, b, o, store.Query{SortBy: way.by, Asc: way.asc, From: &start, To: &start, Names: []string{"B"}}, 11)
			}
		}
	}},
	{"events received in reverse order of their times are listed by time", func(t *testing.T, b *bed) {
		oracles, tags := newShops(b, 1)
		for i := range 300 {
			b.record([]store.Mark{oracles[0].mark(tags[0][0], "PageView", start.Add(-time.Duration(i)*time.Minute))})
			if i%50 == 0 {
				oracles[0].expect(t, b, store.Query{SortBy: store.ByTime, Limit: 100})
			}
		}
		expectEveryOrder(t, b, oracles[0], 50)
	}},
	{"times from the year 0 to the year 9999 are kept and ordered", func(t *testing.T, b *bed) {
		oracles, tags := newShops(b, 1)
		o := oracles[0]
		var marks []store.Mark
		for _, text := range []string{
			"9999-12-31T23:59:59.999999Z", "1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "1969-12-31T23:59:59.999999Z",
			"0000-01-01T00:00:00Z", "1582-10-15T00:00:00Z", "2262-04-11T23:47:16.854776Z", "1677-09-21T00:12:43.145224Z", "0001-01-01T00:00:00.000001Z",
		} {
			at, err := time.Parse(time.RFC3339Nano, text)
			testenv.Check(t, err)
			marks = append(marks, o.mark(tags[0][0], "Ancient", at))
		}
		b.record(marks)
		for range b.reopened {
			expectEveryOrder(t, b, o, 2)
			for _, from := range o.events {
				// The first moment of year 1, Go's zero time, is a bound like any other.
				o.expect(t, b, store.Query{SortBy: store.ByTime, From: &from.time, Limit: 100})
				o.expect(t, b, store.Query{SortBy: store.ByTime, To: &from.time, Limit: 100})
				for _, to := range o.events {
					if to.time.Before(from.time) {
						continue
					}
					o.expect(t, b, store.Query{SortBy: store.ByTime, From: &from.time, To: &to.time, Limit: 100})
				}
			}
		}
	}},
	{"ranges are inclusive to the microsecond", func(t *testing.T, b *bed) {
		oracles, tags := newShops(b, 1)
		o := oracles[0]
		var marks []store.Mark
		for i := range 9 {
			marks = append(marks, o.mark(tags[0][0], "Purchase", start.Add(time.Duration(i)*time.Microsecond)))
		}
		b.record(marks)
		for from := -1; from <= 9; from++ {
			for to := from; to <= 9; to++ {
				for _, way := range everyOrder {
					o.expect(t, b, store.Query{
						SortBy: way.by, Asc: way.asc, Limit: 12,
						From: new(start.Add(time.Duration(from) * time.Microsecond)), To: new(start.Add(time.Duration(to) * time.Microsecond)),
					})
				}
			}
		}
	}},
	{"a range that ends before it starts is empty", func(t *testing.T, b *bed) {
		oracles, tags := newShops(b, 1)
		for i := range 5 {
			b.record([]store.Mark{oracles[0].mark(tags[0][0], "Purchase", start.Add(time.Duration(i)*time.Hour))})
		}
		for _, way := range everyOrder {
			for _, names := range [][]string{nil, {"Purchase"}} {
				for _, gap := range []time.Duration{time.Microsecond, time.Hour, 3 * time.Hour} {
					oracles[0].expect(t, b, store.Query{
						SortBy: way.by, Asc: way.asc, Names: names, Limit: 12,
						From: new(start.Add(3 * time.Hour)), To: new(start.Add(3*time.Hour - gap)),
					})
				}
			}
		}
	}},
	{"2000 distinct names are filtered and sorted", func(t *testing.T, b *bed) {
		r := testenv.Random(t)
		oracles, tags := newShops(b, 1)
		o := oracles[0]
		for range 3 {
			var marks []store.Mark
			for i := range 900 {
				marks = append(marks, o.mark(tags[0][i%2], fmt.Sprintf("Name%d", len(o.events)%2000), randomTime(r)))
			}
			b.record(marks)
		}
		var many []string
		for i := range 500 {
			many = append(many, fmt.Sprintf("Name%d", i*3))
		}
		for range b.reopened {
			for _, way := range everyOrder {
				expectAllPages(t, b, o, store.Query{SortBy: way.by, Asc: way.asc}, 800)
				for _, offset := range []int{0, 50, 330} {
					o.expect(t, b, store.Query{SortBy: way.by, Asc: way.asc, Names: many, Tag: tags[0][0], Offset: offset, Limit: 100})
				}
				o.expect(t, b, store.Query{SortBy: way.by, Asc: way.asc, Names: []string{"Name1999", "Name0", "Name1999"}, Limit: 100})
			}
		}
	}},
	{"a thousand made-up names, before and after the real ones, change nothing", func(t *testing.T, b *bed) {
		r := testenv.Random(t)
		oracles, tags := newShops(b, 2)
		n := 0
		flood := func(o *oracle, tags ...store.TagID) {
			var marks []store.Mark
			for range 400 {
				n++
				name := fmt.Sprintf("%c%dMadeUp", 'A'+n*7%26, n)
				for range 1 + r.IntN(3) {
					marks = append(marks, o.mark(pick(r, tags...), name, randomTime(r)))
				}
			}
			b.record(marks)
		}
		shop := func(o *oracle, tags []store.TagID) {
			var marks []store.Mark
			for range 350 {
				marks = append(marks, o.mark(pick(r, tags...), randomName(r), randomTime(r)))
			}
			b.record(marks)
		}
		for round := range 2 {
			// One shop is flooded before it has sent anything, the other one later, and at one of its two tags.
			flood(oracles[0], tags[0]...)
			shop(oracles[0], tags[0])
			shop(oracles[1], tags[1])
			flood(oracles[1], tags[1][0])
			for i, o := range oracles {
				expectRandom(t, b, r, o, tags[i], 10)
				for _, way := range everyOrder {
					o.expect(t, b, store.Query{SortBy: way.by, Asc: way.asc, Limit: 3000}) // every name's events at once
				}
			}
			if t.Failed() {
				return
			}
			if round%2 == 0 {
				b.kill()
			} else {
				b.reopen()
			}
		}
		for i, o := range oracles {
			expectRandom(t, b, r, o, tags[i], 10)
			expectAllPages(t, b, o, store.Query{SortBy: store.ByName, Asc: i == 0}, 1000)
		}
	}},
	{"a name that is twice in the filter counts once, and an unknown name selects nothing", func(t *testing.T, b *bed) {
		oracles, tags := newShops(b, 1)
		b.record([]store.Mark{oracles[0].mark(tags[0][0], "A", start), oracles[0].mark(tags[0][0], "B", start)})
		for _, names := range [][]string{{"A", "A"}, {"A", "Unknown"}, {"Unknown"}, {"B", "A", "B"}, {"a"}, {""}} {
			for _, way := range everyOrder {
				oracles[0].expect(t, b, store.Query{SortBy: way.by, Asc: way.asc, Names: names, Limit: 12})
			}
		}
	}},
}
