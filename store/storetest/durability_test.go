package storetest

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

// ingest records events from several goroutines at once, and counts the acknowledged ones.
type ingest struct {
	once         bool // marks that the engine refuses are not sent again
	acknowledged atomic.Int64
	all          sync.WaitGroup
}

// start starts the writers. Each calls Record until more returns false. When Record fails, the writer calls failed and
// stops.
func (in *ingest) start(
	b *bed, m store.MerchantID, tags []store.TagID, writers int, more func(call int) bool, failed func(error),
) {
	for w := range writers {
		in.all.Go(func() {
			for call := 0; more(call); call++ {
				var marks []store.Mark
				for i := range 1 + call%3 {
					e := mark(m, tags[(w+i)%len(tags)], "user-1")
					e.Name = fmt.Sprintf("Event%d", (w+call)%5)
					e.Time = start.Add(time.Duration(call/4) * time.Second)
					e.Raw = fmt.Appendf(nil, `{"n":%d}`, w*1_000_000+call*10+i)
					marks = append(marks, e)
				}
				record := b.Record
				if in.once {
					record = b.Engine.Record
				}
				if err := record(b.t.Context(), marks); err != nil {
					failed(err)
					return
				}
				in.acknowledged.Add(int64(len(marks)))
			}
		})
	}
}

// collect lists all events of a query page by page, expects each once and in order, and returns their numbers by id.
func collect(t *testing.T, b *bed, q store.Query) map[store.EventID]int {
	t.Helper()
	seen := map[store.EventID]int{}
	var last store.Event
	for q.Limit = 100; ; q.Offset += q.Limit {
		page, err := b.Events(t.Context(), q)
		testenv.Check(t, err)
		for _, e := range page.Events {
			if _, twice := seen[e.ID]; twice {
				t.Errorf("event %s is listed twice", e.ID)
			}
			if len(seen) > 0 && !inOrder(q, last, e) {
				t.Errorf("%v %s %s is listed before %v %s %s", last.Time, last.Name, last.ID, e.Time, e.Name, e.ID)
			}
			seen[e.ID], last = numberOf(e), e
		}
		if len(page.Events) < q.Limit {
			if len(seen) != page.Total {
				t.Errorf("%d events on all pages, total %d", len(seen), page.Total)
			}
			return seen
		}
	}
}

// inOrder reports whether a may be listed right before b.
func inOrder(q store.Query, a, b store.Event) bool {
	// order.compare needs numbers in the order of receipt. Here the ids give that order.
	x, y := &known{n: 0, name: a.Name, time: a.Time}, &known{n: 1, name: b.Name, time: b.Time}
	if a.ID > b.ID {
		x.n, y.n = 1, 0
	}
	return order{q.SortBy, q.Asc}.compare(x, y) < 0
}

var durabilityTests = []test{
	{"an open engine is ready, and while it accepts events it has space for them", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		for when := range b.reopened {
			if err := b.Ready(); err != nil {
				t.Errorf("%s: %v", when, err)
			}
			b.record([]store.Mark{mark(m, tag, "user-1")}, store.Recorded)
			if b.FreeSpace() == 0 {
				t.Errorf("%s: FreeSpace is 0, but an event was accepted", when)
			}
		}
	}},
	{"a closed engine accepts no marks", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		b.close()
		if err := b.Engine.Record(b.t.Context(), []store.Mark{mark(m, tag, "user-1")}); err == nil {
			t.Error("Record after Close gives no error")
		}
	}},
	{"every acknowledged event of concurrent ingest is listed once, and after reopening too", func(t *testing.T, b *bed) {
		oracles, tags := newShops(b, 1)
		m := oracles[0].merchant
		var in ingest
		in.start(b, m, tags[0], 8, func(call int) bool { return call < 60 }, func(err error) { t.Error(err) })
		in.all.Wait()
		for range b.reopened {
			for _, way := range everyOrder {
				seen := collect(t, b, store.Query{Merchant: m, SortBy: way.by, Asc: way.asc})
				numbers := map[int]bool{}
				for _, n := range seen {
					numbers[n] = true
				}
				if want := int(in.acknowledged.Load()); len(seen) != want || len(numbers) != want {
					t.Errorf("by %s asc %v: %d events with %d bodies, want %d", way.by, way.asc, len(seen), len(numbers), want)
				}
			}
		}
	}},
	{"a page during ingest has every event acknowledged before, and its total is as of the same moment", func(t *testing.T, b *bed) {
		oracles, tags := newShops(b, 1)
		m := oracles[0].merchant
		var in ingest
		var done atomic.Bool
		in.start(b, m, tags[0], 4, func(call int) bool { return call < 200 && !done.Load() }, func(err error) { t.Error(err) })
		last := 0
		for i := range 150 {
			way := everyOrder[i%len(everyOrder)]
			before := int(in.acknowledged.Load())
			q := store.Query{Merchant: m, SortBy: way.by, Asc: way.asc, Limit: 100}
			page, err := b.Events(t.Context(), q)
			if err != nil {
				t.Error(err)
				break
			}
			if page.Total < before || page.Total < last || len(page.Events) != min(page.Total, 100) {
				t.Errorf("%d events of %d; %d were acknowledged before, and the previous total was %d",
					len(page.Events), page.Total, before, last)
			}
			for i := 1; i < len(page.Events); i++ {
				if !inOrder(q, page.Events[i-1], page.Events[i]) {
					t.Errorf("%+v is listed before %+v", page.Events[i-1], page.Events[i])
				}
			}
			last = page.Total
			// A page in the middle is exact only if the events before it and after it are counted as of one moment.
			q.Offset = page.Total / 2
			if page, err = b.Events(t.Context(), q); err != nil || len(page.Events) != min(page.Total-q.Offset, 100) {
				t.Errorf("offset %d: %d events of %d, %v", q.Offset, len(page.Events), page.Total, err)
			}
			if t.Failed() {
				break
			}
		}
		done.Store(true)
		in.all.Wait()
	}},
	{"Close during ingest loses no acknowledged event, and no refused event is stored", func(t *testing.T, b *bed) {
		oracles, tags := newShops(b, 1)
		m := oracles[0].merchant
		in := ingest{once: true}
		var unsure atomic.Int64 // calls whose marks may or may not be recorded; they have at most 3 marks each
		enough := make(chan struct{})
		var once sync.Once
		in.start(b, m, tags[0], 8, func(call int) bool {
			if in.acknowledged.Load() > 200 {
				once.Do(func() { close(enough) })
			}
			return call < 2000 // so that the test ends even if Close does not stop the engine from accepting
		}, func(err error) {
			if store.KindOf(err) != store.KindUnavailable {
				unsure.Add(1)
			}
		})
		<-enough
		b.close()
		in.all.Wait()
		b.open()
		_, total := b.list(m)
		acknowledged := int(in.acknowledged.Load())
		if total < acknowledged || total > acknowledged+3*int(unsure.Load()) {
			t.Errorf("%d events; %d were acknowledged, and %d calls may or may not be recorded", total, acknowledged, unsure.Load())
		}
	}},
	{"what was acknowledged survives a kill", func(t *testing.T, b *bed) {
		oracles, tags := newShops(b, 1)
		o := oracles[0]
		for i := range 20 {
			e := withEventID(o.mark(tags[0][i%2], "Purchase", start.Add(time.Duration(i)*time.Hour)), fmt.Sprintf("order-%d", i))
			e.Identity = who(e.Identity.MUID, email(fmt.Sprintf("%d@example.com", i)))
			b.record([]store.Mark{e}, store.Recorded)
		}
		b.resolve(o.merchant, who("user-x", device("d")))
		key, _ := b.key(b.partner("Late"), 0)

		b.kill()
		expectEveryOrder(t, b, o, 7)
		b.expectResolved(o.merchant, who("", email("19@example.com")), store.MUID(o.events[19].muid))
		b.expectResolved(o.merchant, who("", device("d")), "user-x")
		b.record([]store.Mark{withEventID(mark(o.merchant, tags[0][0], "user-1"), "order-19")}, store.Duplicate)
		if got, ok := b.Directory().Key(key.ID); !ok || !sameKey(got, key) {
			t.Errorf("key %+v, %v; want %+v", got, ok, key)
		}
	}},
	{"an engine that is reopened many times keeps every event", func(t *testing.T, b *bed) {
		r := testenv.Random(t)
		oracles, tags := newShops(b, 2)
		for range 8 {
			for i, o := range oracles {
				var marks []store.Mark
				for range r.IntN(40) {
					marks = append(marks, o.mark(pick(r, tags[i]...), randomName(r), randomTime(r)))
				}
				b.record(marks)
			}
			b.reopen()
			for i, o := range oracles {
				expectRandom(t, b, r, o, tags[i], 8)
			}
		}
	}},
}
