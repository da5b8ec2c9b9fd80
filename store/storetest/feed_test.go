package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

// receipts has the events of several merchants in the order of receipt.
type receipts struct {
	oracles []*oracle
	tags    [][]store.TagID
	all     []receipt
}

// receipt is one event: the oracle of its merchant, and the event's place there.
type receipt struct{ shop, n int }

func newReceipts(b *bed, shops int) *receipts {
	b.t.Helper()
	oracles, tags := newShops(b, shops)
	return &receipts{oracles: oracles, tags: tags}
}

// record records n random events of these shops.
func (rs *receipts) record(b *bed, r *rand.Rand, n int, shops ...int) {
	b.t.Helper()
	var marks []store.Mark
	for range n {
		shop := pick(r, shops...)
		rs.all = append(rs.all, receipt{shop, len(rs.oracles[shop].events)})
		marks = append(marks, rs.oracles[shop].mark(pick(r, rs.tags[shop]...), randomName(r), randomTime(r)))
	}
	b.record(marks)
}

func (rs *receipts) known(at receipt) *known { return rs.oracles[at.shop].events[at.n] }

func (rs *receipts) merchants(shops ...int) (ids []store.MerchantID) {
	for _, i := range shops {
		ids = append(ids, rs.oracles[i].merchant)
	}
	return ids
}

// selected returns the events that a query selects, of those from the place from on.
func (rs *receipts) selected(q store.FeedQuery, from int) (want []receipt) {
	for _, at := range rs.all[from:] {
		if slices.Contains(q.Merchants, rs.oracles[at.shop].merchant) &&
			rs.known(at).matches(store.Query{Tag: q.Tag, Names: q.Names, Bot: q.Bot, From: q.From, To: q.To}) {
			want = append(want, at)
		}
	}
	return want
}

// check compares an event with what it must be.
func (rs *receipts) check(t *testing.T, got *store.Received, want receipt) {
	t.Helper()
	k := rs.known(want)
	if string(got.Raw) != k.raw || got.MUID != k.muid || got.Name != k.name || !got.Time.Equal(k.time) || got.Tag != k.tag || got.Bot != k.bot ||
		got.Merchant != rs.oracles[want.shop].merchant || !sameDetails(got.Details, k.details) {
		t.Fatalf("the feed has %+v with body %s, want %+v of %s", got.Event, got.Raw, k, rs.oracles[want.shop].merchant)
	}
}

// follower reads a feed step by step. It knows how much of the oracle's events it must have seen.
type follower struct {
	store.FeedQuery
	from int // the events of receipts before this place are not its own
	seen int
	last store.Received
}

// read calls Feed until it has limit events or there are no more, and compares them.
func (f *follower) read(t *testing.T, b *bed, rs *receipts, limit int) {
	t.Helper()
	want := rs.selected(f.FeedQuery, f.from)
	for more := true; more && limit > 0; {
		end, err := b.Feed(t.Context(), f.FeedQuery, func(e *store.Received) bool {
			if f.seen == len(want) {
				t.Fatalf("the feed has %+v with body %s after the last of %d events", e, e.Raw, len(want))
			}
			rs.check(t, e, want[f.seen])
			if f.seen > 0 && (e.ID <= f.last.ID || e.ReceivedAt.Before(f.last.ReceivedAt)) {
				t.Fatalf("%s of %v comes after %s of %v", e.ID, e.ReceivedAt, f.last.ID, f.last.ReceivedAt)
			}
			f.last = *e
			f.seen++
			limit--
			return limit > 0
		})
		testenv.Check(t, err)
		f.After, more = end.Cursor, end.More
	}
	if limit > 0 && f.seen != len(want) {
		t.Fatalf("the feed has ended after %d of %d events", f.seen, len(want))
	}
}

func hasNews(news <-chan struct{}) bool {
	select {
	case <-news:
		return true
	default:
		return false
	}
}

var feedTests = []test{
	{"followers of random merchants see every event once and in the order of receipt, also after reopening and kills", func(t *testing.T, b *bed) {
		r := testenv.Random(t)
		rs := newReceipts(b, 4)
		var followers []*follower
		for round := range testenv.Rounds(20) {
			rs.record(b, r, 1+r.IntN(150), pick(r, []int{0}, []int{0, 1}, []int{0, 1, 2, 3})...)
			f := &follower{FeedQuery: store.FeedQuery{Merchants: rs.merchants(pick(r, []int{0}, []int{1}, []int{2}, []int{3, 1}, []int{0, 1, 2, 3})...)}}
			if r.IntN(2) == 0 {
				f.After, f.from = b.latest(), len(rs.all)
			}
			switch r.IntN(5) {
			case 0:
				f.Tag = rs.tags[1][0]
			case 1:
				f.Names = []string{"Purchase", "P"}
			case 2:
				f.From, f.To = new(start.AddDate(0, 0, -1).Truncate(time.Microsecond)), new(start.AddDate(0, 0, 9))
			case 3:
				f.Bot = new(r.IntN(2) == 0)
			}
			followers = append(followers, f)
			for range 10 {
				pick(r, followers...).read(t, b, rs, 1+r.IntN(200))
			}
			switch {
			case round%20 == 9:
				b.kill()
			case round%20 == 19:
				b.reopen()
			case round%7 == 6:
				b.clock.move(pick(r, -time.Hour, time.Hour))
			}
		}
		for _, f := range followers {
			f.read(t, b, rs, 1<<30)
			f.read(t, b, rs, 1<<30)
		}
	}},
	{"all followers see one order during concurrent ingest, which a reader from the beginning sees too", func(t *testing.T, b *bed) {
		oracles, tags := newShops(b, 2)
		merchants := []store.MerchantID{oracles[0].merchant, oracles[1].merchant}
		var in ingest
		const calls = 150
		for i, m := range merchants {
			in.start(b, m, tags[i], 4, func(call int) bool { return call < calls }, func(err error) { t.Error(err) })
		}
		done := make(chan struct{})
		go func() {
			in.all.Wait()
			close(done)
		}()
		follow := func() (ids []store.EventID) {
			news, stop := b.Watch(merchants)
			defer stop()
			var after store.Cursor
			for {
				last := false
				select {
				case <-news:
				case <-done:
					last = true
				case <-time.After(time.Minute):
					t.Error("a minute without news")
					return ids
				}
				for more := true; more; {
					end, err := b.Feed(t.Context(), store.FeedQuery{Merchants: merchants, After: after}, func(e *store.Received) bool {
						ids = append(ids, e.ID)
						return true
					})
					if err != nil {
						t.Error(err)
						return ids
					}
					after, more = end.Cursor, end.More
				}
				if last {
					return ids
				}
			}
		}
		seen := atOnce(3, func(int) []store.EventID { return follow() })
		seen = append(seen, follow())
		for i, ids := range seen {
			if int64(len(ids)) != in.acknowledged.Load() || !slices.IsSorted(ids) || len(slices.Compact(slices.Clone(ids))) != len(ids) {
				t.Errorf("follower %d has seen %d events, want %d in order", i, len(ids), in.acknowledged.Load())
			}
			if !slices.Equal(ids, seen[0]) {
				t.Errorf("follower %d has seen other events than follower 0", i)
			}
		}
	}},
	{"the cursor moves past the events of others, and to the end when there is nothing to see", func(t *testing.T, b *bed) {
		r := testenv.Random(t)
		rs := newReceipts(b, 2)
		rs.record(b, r, 300, 0)
		for range 2 {
			end, err := b.Feed(t.Context(), store.FeedQuery{Merchants: rs.merchants(1)}, func(e *store.Received) bool {
				t.Errorf("the feed of a merchant without events has %+v", e)
				return true
			})
			if err != nil || end.More || end.Cursor != b.latest() {
				t.Errorf("the end is %+v, %v; want the cursor %s and no more", end, err, b.latest())
			}
			rs.record(b, r, 10, 0)
		}
		if end, err := b.Feed(t.Context(), store.FeedQuery{}, func(*store.Received) bool { return true }); err != nil || end.Cursor != b.latest() {
			t.Errorf("without merchants the end is %+v, %v", end, err)
		}
	}},
	{"a reader that stops after any event goes on with the next one", func(t *testing.T, b *bed) {
		r := testenv.Random(t)
		rs := newReceipts(b, 2)
		rs.record(b, r, 120, 0, 1)
		one := follower{FeedQuery: store.FeedQuery{Merchants: rs.merchants(0, 1)}}
		for range rs.all {
			one.read(t, b, rs, 1)
			if one.After != one.last.Cursor {
				t.Fatalf("the cursor is %s, want that of the last event, %s", one.After, one.last.Cursor)
			}
		}
		one.read(t, b, rs, 1)
	}},
	{"a query with an end has the events up to it, whatever comes later", func(t *testing.T, b *bed) {
		r := testenv.Random(t)
		rs := newReceipts(b, 2)
		rs.record(b, r, 50, 0, 1)
		f := follower{FeedQuery: store.FeedQuery{Merchants: rs.merchants(0, 1), UpTo: b.latest()}}
		before := *rs
		rs.record(b, r, 50, 0, 1)
		f.read(t, b, &before, 1<<30)
		if f.After != f.UpTo {
			t.Errorf("the cursor is %s at the end, want %s", f.After, f.UpTo)
		}
	}},
	{"a cursor from after the end is not moved back, and sees nothing", func(t *testing.T, b *bed) {
		r := testenv.Random(t)
		rs := newReceipts(b, 1)
		rs.record(b, r, 5, 0)
		late := b.latest()
		rs.record(b, r, 5, 0)
		end, err := b.Feed(t.Context(), store.FeedQuery{Merchants: rs.merchants(0), After: b.latest(), UpTo: late}, func(e *store.Received) bool {
			t.Errorf("the feed has %+v", e)
			return true
		})
		if err != nil || end.More || end.Cursor != b.latest() {
			t.Errorf("the end is %+v, %v; want %s", end, err, b.latest())
		}
	}},
	{"what is no cursor is refused", func(t *testing.T, b *bed) {
		for _, after := range []store.Cursor{"x", "latest", "cur_", "cur_000000000000000", "cur_00000000000000000", "cur_zzzzzzzzzzzzzzzz", " ", b.latest() + "0"} {
			_, err := b.Feed(t.Context(), store.FeedQuery{After: after}, func(*store.Received) bool { return true })
			expectInvalid(t, err, "after")
		}
	}},
	{"a watch tells of new events of its merchants, and of no others", func(t *testing.T, b *bed) {
		oracles, tags := newShops(b, 3)
		m, err := b.Merchant(t.Context(), oracles[0].merchant)
		testenv.Check(t, err)
		record := func(shop int) {
			t.Helper()
			b.record([]store.Mark{oracles[shop].mark(tags[shop][0], "Purchase", start)}, store.Recorded)
		}
		// The watch of shop 2 is told after those of the others could have been told.
		both, stopBoth := b.Watch([]store.MerchantID{oracles[0].merchant, oracles[1].merchant, oracles[0].merchant})
		defer stopBoth()
		second, stopSecond := b.Watch([]store.MerchantID{oracles[1].merchant})
		third, stopThird := b.Watch([]store.MerchantID{oracles[2].merchant})
		defer stopThird()
		partners, stopPartners := b.WatchPartner(m.Partner)
		defer stopPartners()
		strangers, stopStrangers := b.WatchPartner(b.partner("Other").ID)
		defer stopStrangers()
		told := func(news <-chan struct{}) {
			t.Helper()
			select {
			case <-news:
			case <-time.After(time.Minute):
				t.Fatal("a minute without news")
			}
		}
		for range 3 {
			record(0)
			told(both)
			record(2)
			told(third)
			if hasNews(second) {
				t.Error("the watch of a merchant tells of others")
			}
			record(1)
			told(both)
			told(second)
			told(partners)
		}
		added := b.merchant(store.Partner{ID: m.Partner}, "Added")
		tag := b.tag(added, store.ClientSide, "").ID
		for range 3 { // twice, it may be told of the events before
			b.record([]store.Mark{(&oracle{merchant: added.ID}).mark(tag, "Purchase", start)}, store.Recorded)
			told(partners)
		}
		if hasNews(strangers) {
			t.Error("the watch of another partner is told")
		}
		stopSecond()
		record(1)
		told(both)
		if hasNews(second) {
			t.Error("a watch that was stopped still tells")
		}
	}},
	{"who watches and then reads misses no event, however many watch", func(t *testing.T, b *bed) {
		const shops, readers, rounds, each = 4, 64, 10, 2
		oracles, tags := newShops(b, shops)
		seen := make(chan struct{}, readers*rounds*each)
		ctx, cancel := context.WithCancel(t.Context())
		var reading sync.WaitGroup
		defer reading.Wait()
		defer cancel()
		for i := range readers {
			m := []store.MerchantID{oracles[i%shops].merchant}
			reading.Go(func() {
				news, stop := b.Watch(m)
				defer func() { stop() }()
				var after store.Cursor
				for n := 0; ; {
					end, err := b.Feed(t.Context(), store.FeedQuery{Merchants: m, After: after}, func(e *store.Received) bool {
						if string(e.Raw) != fmt.Sprintf(`{"n":%d}`, n) {
							t.Errorf("event %d has body %s", n, e.Raw)
						}
						n++
						seen <- struct{}{}
						return true
					})
					if err != nil {
						t.Error(err)
						return
					}
					if after = end.Cursor; n == rounds*each {
						return
					}
					select {
					case <-news:
					case <-ctx.Done():
						return
					}
					if i/shops%2 == 0 { // half of the readers of each shop watch anew each time
						stop()
						news, stop = b.Watch(m)
					}
				}
			})
		}
		// The next round begins when all have seen this one, so no later event wakes a reader that has missed the last one. The
		// second event of a round comes while they read the first.
		for range rounds {
			for range each {
				for shop, o := range oracles {
					b.record([]store.Mark{o.mark(tags[shop][0], "Purchase", start)}, store.Recorded)
				}
			}
			for n := range readers * each {
				select {
				case <-seen:
				case <-time.After(time.Minute):
					t.Fatalf("%d of the %d events of a round were seen", n, readers*each)
				}
			}
		}
	}},
}
