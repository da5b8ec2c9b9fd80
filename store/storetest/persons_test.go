package storetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

var personTests = []test{
	{"what is known of a browser comes with its event alone, wherever events are read, and goes with it", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		of := map[string]string{"ann": "\x00\x01sealed", "bob": "", "cat": strings.Repeat("\xff", 600)}
		var marks []store.Mark
		for _, muid := range []string{"ann", "bob", "cat"} {
			mark := mark(m, tag, store.MUID(muid))
			if of[muid] != "" {
				mark.Client = []byte(of[muid])
			}
			marks = append(marks, mark)
		}
		claimed := mark(m, tag, "")
		claimed.Identity, claimed.Client = who("", email("dan@example.com")), []byte("of dan")
		b.record([]store.Mark{markOf(m, tag, who("dan", email("dan@example.com")))})
		b.record(append(marks, claimed))
		expect := func(muids ...string) {
			t.Helper()
			check := func(e *store.Event) {
				if want := of[string(e.MUID)]; string(e.Client) != want && (e.MUID != "dan" || string(e.Client) != "of dan") || e.Raw[0] != '{' {
					t.Errorf("%s has %q and the body %q", e.MUID, e.Client, e.Raw)
				}
			}
			page, err := b.Events(t.Context(), store.Query{Merchant: m, SortBy: store.ByTime, Limit: 10})
			if err != nil || len(page.Events) != len(muids)+2 {
				t.Fatalf("%+v, %v", page, err)
			}
			for i := range page.Events {
				check(&page.Events[i])
			}
			n := 0
			if _, err := b.Feed(t.Context(), store.FeedQuery{Merchants: []store.MerchantID{m}}, func(e *store.Received) bool {
				check(&e.Event)
				n++
				return true
			}); err != nil || n != len(muids)+2 {
				t.Fatalf("the feed has %d events, %v", n, err)
			}
			for _, muid := range muids {
				if _, err := b.PersonalData(t.Context(), m, who(store.MUID(muid)), false, func(p *store.PersonalRecord) error {
					check(p.Event)
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
		}
		expect("ann", "bob", "cat")
		b.reopen()
		expect("ann", "bob", "cat")
		b.erased(m, who("ann"), false)
		expect("bob", "cat")
	}},
	{"an erasure takes the events of a person's muid and those that name the person, and no others", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		named := mark(m, tag, "else")
		named.Raw = []byte(`{"email":" ANN@example.com"}`)
		b.record([]store.Mark{
			markOf(m, tag, who("ann", email("ann@example.com"))), mark(m, tag, "ann"), named,
			markOf(m, tag, who("bob", email("bob@example.com"))),
		})
		b.expectPersonalData(m, who("", email("ann@example.com")), 3, 1)
		e := b.erased(m, who("", email("ann@example.com")), false)
		if e.Events != 3 || e.Links != 1 || e.FinishedAt.IsZero() || e.Attempts != 0 || e.LastError != "" {
			t.Errorf("the receipt is %+v, want 3 events and 1 link", e)
		}
		for range b.reopened {
			b.expectEvents(m, 1)
			b.expectPersonalData(m, who("", email("ann@example.com")), 0, 0)
			b.expectPersonalData(m, who("", email("bob@example.com")), 1, 1)
		}
	}},
	{"after an erasure with suppress, events of the person are refused, also by an identifier alone that nothing is linked to", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		b.record([]store.Mark{markOf(m, tag, who("ann", email("ann@example.com"), phone("123")))})
		b.erased(m, who("", email("ann@example.com")), true)
		for range b.reopened {
			b.record([]store.Mark{
				markOf(m, tag, who("", email("ann@example.com"))), markOf(m, tag, who("", phone("123"))), mark(m, tag, "ann"),
				markOf(m, tag, who("new", email("ann@example.com"))), markOf(m, tag, who("", email("bob@example.com"))), mark(m, tag, "bob"),
			}, store.Suppressed, store.Suppressed, store.Suppressed, store.Suppressed, store.Unresolved, store.Recorded)
		}
	}},
	{"the same erasure again is the same one while it has not begun, with suppress added", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		b.record([]store.Mark{mark(m, tag, "ann")})
		seen := map[store.ErasureID]bool{}
		for i := range 20 {
			e, err := b.Erase(t.Context(), m, who("ann"), store.ErasureOptions{Suppress: i > 0})
			testenv.Check(t, err)
			seen[e.ID] = true
		}
		_, total, err := b.Erasures(t.Context(), m, 0, 1)
		if err != nil || total != len(seen) {
			t.Errorf("there are %d erasures, %v; want the %d that were returned", total, err, len(seen))
		}
		for id := range seen {
			b.done(id)
		}
		b.record([]store.Mark{mark(m, tag, "ann")}, store.Suppressed)
	}},
	{"the erasures of a merchant come in pages, the newest first", func(t *testing.T, b *bed) {
		m, _ := b.shop()
		var ids []store.ErasureID
		for i := range 7 {
			e, err := b.Erase(t.Context(), m, who(store.MUID(fmt.Sprintf("user-%d", i))), store.ErasureOptions{})
			testenv.Check(t, err)
			ids = append(ids, e.ID)
		}
		for range b.reopened {
			for offset := range 9 {
				page, total, err := b.Erasures(t.Context(), m, offset, 3)
				if err != nil || total != 7 || len(page) != max(0, min(3, 7-offset)) {
					t.Fatalf("from %d on there are %d of %d, %v", offset, len(page), total, err)
				}
				for i, e := range page {
					if want := ids[6-offset-i]; e.ID != want {
						t.Errorf("at %d is %s, want %s", offset+i, e.ID, want)
					}
				}
			}
			for _, id := range ids {
				b.done(id)
			}
		}
	}},
	{"a partner has a limited number of open erasures", func(t *testing.T, b *bed) {
		e := store.Erasure{Partner: "p", Merchant: "m", Person: store.Person{MUIDs: []store.IdentityKey{{1}}}}
		open := func(yield func(store.Erasure) bool) {
			for i := range store.MaxOpenErasures {
				if !yield(store.Erasure{ID: "x", Partner: "p", Merchant: "m", State: store.ErasureRemoving, UpTo: uint64(i + 1)}) {
					return
				}
			}
		}
		_, err := e.Admit(open)
		expectKind(t, err, store.KindBusy)
		e.Partner = "other"
		if _, err := e.Admit(open); err != nil {
			t.Errorf("another partner: %v", err)
		}
	}},
	{"a claimed link to a person's muid takes none of the person's events", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		b.record([]store.Mark{markOf(m, tag, said(store.ByCookie, "ann", email("ann@example.com"))), mark(m, tag, "ann")})
		for _, by := range []store.LinkSource{store.ByCookie, store.ByAnyone} { // by now, anyone can know the muid, and write a cookie
			b.record([]store.Mark{markOf(m, tag, said(by, "eve", email("eve@example.com")))})
			b.expectResolved(m, said(by, "ann", email("eve@example.com")), "ann")
		}
		for range b.reopened {
			b.expectClaimed(m, who("", email("eve@example.com")), 2, 2)
			b.expectClaimed(m, who("", email("ann@example.com")), 2, 0)
		}
		e := b.erased(m, who("", email("eve@example.com")), true)
		if e.Events != 2 || e.Claimed != 2 || e.Links != 2 {
			t.Errorf("the receipt is %+v, want 2 events, 2 claimed ones and 2 links", e)
		}
		b.record([]store.Mark{mark(m, tag, "ann"), mark(m, tag, "eve")}, store.Recorded, store.Suppressed)
		b.expectClaimed(m, who("", email("ann@example.com")), 3, 0)
	}},
	{"a person keeps all muids that trusted links have led to", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		const muids = 250
		var marks []store.Mark
		for i := range muids {
			marks = append(marks, markOf(m, tag, said([]store.LinkSource{store.ByCookie, store.BySecret}[i%5/4], store.MUID(fmt.Sprintf("ann-%d", i)), email("ann@example.com"))),
				mark(m, tag, store.MUID(fmt.Sprintf("ann-%d", i))))
		}
		for i := range 2 * store.MaxFormerLinks { // cannot push them out
			marks = append(marks, markOf(m, tag, said(store.ByAnyone, store.MUID(fmt.Sprintf("eve-%d", i)), email("ann@example.com"))))
		}
		b.record(marks)
		for range b.reopened {
			events, links, claimed := b.personalData(m, who("", email("ann@example.com")), false)
			if events != 2*muids || claimed < store.MaxFormerLinks || claimed > store.MaxFormerLinks+2 || links > muids+store.MaxFormerLinks+2 {
				t.Errorf("%d events, %d claimed, %d links", events, claimed, links)
			}
		}
		b.erased(m, who("", email("ann@example.com")), false)
		b.expectClaimed(m, who("", email("ann@example.com")), 0, 0)
	}},
	{"links that strangers have made in advance push out no trusted one, and block none", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		strangers := func(name string) (marks []store.Mark) {
			for i := range 200 {
				by := []store.LinkSource{store.ByAnyone, store.ByCookie}[i%2] // with a new cookie each time
				marks = append(marks, markOf(m, tag, said(by, store.MUID(fmt.Sprintf("%s-%d", name, i)), email("ann@example.com"))))
			}
			return marks
		}
		b.record(append(strangers("eve"), markOf(m, tag, said(store.ByCookie, "ann", email("ann@example.com")))))
		b.expectResolved(m, who("", email("ann@example.com")), "ann")
		b.record(append(strangers("mallory"), mark(m, tag, "ann")))
		for range b.reopened {
			of := map[store.MUID]int{}
			if _, err := b.PersonalData(t.Context(), m, who("", email("ann@example.com")), false, func(r *store.PersonalRecord) error {
				if r.Event != nil {
					of[r.Event.MUID]++
				}
				return nil
			}); err != nil || of["ann"] != 2 {
				t.Errorf("%d events of the muid are held, %v; want 2", of["ann"], err)
			}
		}
	}},
	{"an identifier has a limited number of links by cookies: later ones are claimed", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		var marks []store.Mark
		for i := range store.MaxCookieLinks {
			marks = append(marks, markOf(m, tag, said(store.ByCookie, store.MUID(fmt.Sprintf("eve-%d", i)), email("ann@example.com"))))
		}
		b.record(marks)
		b.record([]store.Mark{markOf(m, tag, said(store.ByCookie, "late", email("ann@example.com")))})
		for range b.reopened {
			b.expectClaimed(m, who("", email("ann@example.com")), store.MaxCookieLinks, 1)
		}
		b.expectResolved(m, who("ann", email("ann@example.com")), "ann")
		b.record([]store.Mark{mark(m, tag, "ann")})
		b.expectClaimed(m, who("", email("ann@example.com")), store.MaxCookieLinks+1, 1)
	}},
	{"a link that comes back is what it was, also for the marks beside it", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		b.record([]store.Mark{
			markOf(m, tag, who("ann", email("ann@example.com"))),
			markOf(m, tag, said(store.ByAnyone, "eve", email("ann@example.com"))),
			markOf(m, tag, said(store.ByAnyone, "ann", email("ann@example.com"))),
			markOf(m, tag, who("", email("ann@example.com"))), // by the merchant's link
			markOf(m, tag, said(store.ByAnyone, "eve", email("ann@example.com"))),
		})
		b.expectClaimed(m, who("ann"), 3, 0)
		b.record([]store.Mark{
			markOf(m, tag, said(store.ByAnyone, "ann", email("ann@example.com"))),
			markOf(m, tag, who("", email("ann@example.com"))),
		})
		for range b.reopened {
			b.expectClaimed(m, who("ann"), 5, 0)
		}
	}},
	{"a person whose identifier strangers have linked elsewhere keeps the events", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		ann, purchase := who("", email("ann@example.com")), markOf(m, tag, who("", email("ann@example.com")))
		purchase.Raw = []byte(`{"email":"ann@example.com"}`)
		b.record([]store.Mark{markOf(m, tag, said(store.ByCookie, "ann", email("ann@example.com"))), mark(m, tag, "ann"), purchase})
		b.expectResolved(m, said(store.ByAnyone, "eve", email("ann@example.com")), "eve")
		b.record([]store.Mark{purchase, mark(m, tag, "ann"), mark(m, tag, "eve")})
		for range b.reopened {
			b.expectClaimed(m, ann, 5, 1) // all but the stranger's own
		}
		if e := b.erased(m, ann, false); e.Events != 5 || e.Claimed != 1 {
			t.Errorf("the receipt is %+v, want 5 events and a claimed one", e)
		}
		b.expectEvents(m, 1)
	}},
	{"events that came by another person's identifier do not belong to who claimed that", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		// The first link of anybody's muid by a cookie is trusted. So this one is, with both identifiers of the request.
		b.record([]store.Mark{markOf(m, tag, said(store.ByCookie, "eve", email("eve@example.com")))})
		b.expectResolved(m, said(store.ByAnyone, "eve", email("ann@example.com")), "eve")
		purchase := markOf(m, tag, who("", email("ann@example.com")))
		purchase.Raw = []byte(`{"email":"ann@example.com"}`)
		b.record([]store.Mark{purchase, markOf(m, tag, who("", email("eve@example.com")))})
		for range b.reopened {
			b.expectClaimed(m, who("", email("eve@example.com")), 1, 2)
			b.expectClaimed(m, who("eve"), 1, 2)
			b.expectClaimed(m, who("", email("ann@example.com")), 1, 2)
			if events, _, claimed := b.personalData(m, who("eve"), true); events != 3 || claimed != 0 {
				t.Errorf("with what is claimed, %d events and %d claimed ones", events, claimed)
			}
		}
		if e := b.erased(m, who("", email("eve@example.com")), false); e.Events != 1 || e.Claimed != 2 {
			t.Errorf("the receipt is %+v, want an event and 2 claimed ones", e)
		}
		b.expectClaimed(m, who("", email("ann@example.com")), 1, 0)
	}},
	{"whoever links another person's identifier to a cookie of his own gets none of that person's events, and suppresses none", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		mallory := said(store.ByCookie, "fresh", email("mallory@example.com"))
		mallory.Add(store.Phone, "+49 123")
		var victim store.Identity
		victim.Add(store.Phone, "+49 123")
		purchase := markOf(m, tag, victim)
		purchase.Raw = []byte(`{"phone":"+49 123"}`)
		b.record([]store.Mark{markOf(m, tag, mallory), purchase})
		b.expectClaimed(m, who("", email("mallory@example.com")), 1, 1)
		if e := b.erased(m, who("", email("mallory@example.com")), true); e.Events != 1 || e.Claimed != 1 {
			t.Errorf("the receipt is %+v, want an event and a claimed one", e)
		}
		again := []store.Mark{markOf(m, tag, said(store.BySecret, "victim", email("victim@example.com")))}
		again[0].Identity.Add(store.Phone, "+49 123")
		b.record(again)
	}},
	{"an erasure takes what is claimed on request", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		b.record([]store.Mark{markOf(m, tag, said(store.ByAnyone, "ann", email("ann@example.com"))), mark(m, tag, "ann")})
		b.expectClaimed(m, who("", email("ann@example.com")), 0, 2)
		e, err := b.Erase(t.Context(), m, who("", email("ann@example.com")), store.ErasureOptions{Claimed: true, Suppress: true})
		testenv.Check(t, err)
		if e = b.done(e.ID); e.Events != 2 || e.Claimed != 0 || e.Links != 1 {
			t.Errorf("the receipt is %+v, want 2 events and a link", e)
		}
		b.record([]store.Mark{mark(m, tag, "ann")}, store.Suppressed)
	}},
	{"a link becomes trusted when the merchant's secret confirms it, and when it comes back it is what it was", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		b.record([]store.Mark{mark(m, tag, "ann"), mark(m, tag, "bea")})
		for _, step := range []struct {
			by      store.LinkSource
			muid    store.MUID
			events  int
			claimed int
		}{
			{store.ByAnyone, "ann", 0, 1}, {store.BySecret, "ann", 1, 0}, {store.ByAnyone, "ann", 1, 0},
			{store.ByAnyone, "bea", 1, 1}, {store.ByAnyone, "ann", 1, 1}, {store.BySecret, "bea", 2, 0}, {store.ByCookie, "ann", 2, 0},
		} {
			b.expectResolved(m, said(step.by, step.muid, email("ann@example.com")), step.muid)
			b.expectResolved(m, who("", email("ann@example.com")), step.muid)
			b.expectClaimed(m, who("", email("ann@example.com")), step.events, step.claimed)
			b.reopen()
		}
	}},
	{"a feed says of an event whether only a claimed link led to its muid", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		b.record([]store.Mark{markOf(m, tag, said(store.ByAnyone, "ann", email("ann@example.com"))), markOf(m, tag, who("", email("ann@example.com")))})
		var claims []bool
		if _, err := b.Feed(t.Context(), store.FeedQuery{Merchants: []store.MerchantID{m}}, func(e *store.Received) bool {
			claims = append(claims, e.ByClaim)
			return true
		}); err != nil || !slices.Equal(claims, []bool{false, true}) {
			t.Errorf("the feed says %v, %v, want that the second one came by a claim", claims, err)
		}
	}},
	{"an erasure that is repeated once it has begun is another one, which takes what came in meanwhile", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		visit := markOf(m, tag, who("ann", email("ann@example.com")))
		var ids []store.ErasureID
		b.record([]store.Mark{visit, mark(m, tag, "bob")})
		mend := b.backing.fail(t, m) // so that it stays in the middle
		for range 3 {
			e, err := b.Erase(t.Context(), m, who("ann"), store.ErasureOptions{})
			if err != nil || slices.Contains(ids, e.ID) {
				t.Fatalf("after %v comes %s, %v", ids, e.ID, err)
			}
			ids = append(ids, e.ID)
			b.await("the erasure has not begun", func() bool { return b.erasure(e.ID).LastError != "" })
			b.record([]store.Mark{visit}, store.Recorded)
		}
		e, err := b.Erase(t.Context(), m, who("ann"), store.ErasureOptions{})
		testenv.Check(t, err)
		mend()
		b.close() // an attempt that still fails must not note the time after the hour
		b.clock.move(time.Hour)
		b.open()
		for _, id := range append(ids, e.ID) {
			b.done(id)
		}
		b.expectEvents(m, 1)
		b.expectPersonalData(m, who("ann"), 0, 0)
	}},
	{"a merchant whose events cannot be removed holds up no other, and each of its removals says so", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		type merchants struct{ erased, deleted, expired store.MerchantID }
		add := func() (of merchants) {
			for _, id := range []*store.MerchantID{&of.erased, &of.deleted, &of.expired} {
				*id = b.merchant(p, "Shop").ID
				b.record([]store.Mark{mark(*id, "cs_a", "ann"), mark(*id, "cs_a", "bob")})
			}
			return of
		}
		bad, well := add(), add()
		b.clock.move(48 * time.Hour)
		mend := b.backing.fail(t, bad.erased, bad.deleted, bad.expired)
		receipts := map[store.MerchantID]store.ErasureID{}
		erase := func(m store.MerchantID, muid store.MUID) store.ErasureID {
			e, err := b.Erase(t.Context(), m, who(muid), store.ErasureOptions{})
			testenv.Check(t, err)
			return e.ID
		}
		for _, of := range []merchants{bad, well} {
			receipts[of.erased] = erase(of.erased, "ann")
			if _, err := b.DeleteMerchant(t.Context(), of.deleted); err != nil {
				t.Fatal(err)
			}
			b.changeMerchant(of.expired, func(m *store.Merchant) { m.Retention = 1 })
		}
		b.clock.move(time.Hour)
		moved := b.clock.Now()
		b.reopen() // which begins at once
		b.done(receipts[well.erased])
		b.awaitRemovals(map[store.MerchantID]store.RemovalKind{bad.deleted: store.OfDeletion, bad.expired: store.OfRetention})
		b.awaitStored(0, well.deleted, well.expired)
		b.awaitStored(2, bad.expired)
		var failed store.Erasure
		b.await("the erasure has not failed", func() bool {
			failed = b.erasure(receipts[bad.erased])
			return failed.TriedAt.After(moved)
		})
		if failed.State == store.ErasureDone || failed.Attempts == 0 || failed.LastError == "" || strings.Contains(failed.LastError, "block") {
			t.Errorf("the receipt of the erasure that fails is %+v", failed)
		}

		// Another erasure has its own attempts.
		b.clock.stop()
		other := erase(bad.erased, "bob")
		b.await("the other erasure has not failed", func() bool { return b.erasure(other).LastError != "" })
		if e := b.erasure(receipts[bad.erased]); e.Attempts != failed.Attempts || b.erasure(other).Attempts != 1 {
			t.Errorf("after an attempt of another erasure, %d have failed of this one, and %d of that", e.Attempts, b.erasure(other).Attempts)
		}

		mend()
		b.close() // as above
		b.clock.move(time.Hour)
		b.open()
		erase(well.erased, "bob") // so that the engine looks now
		for _, id := range []store.ErasureID{receipts[bad.erased], other} {
			if e := b.done(id); e.Attempts == 0 || e.LastError != "" {
				t.Errorf("the receipt is %+v", e)
			}
		}
		b.awaitRemovals(nil)
		b.awaitStored(0, bad.erased, bad.expired)
	}},
	{"what is past the retention is in no answer, by days of UTC in any time zone of the process", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		// With clocks of New York, which are put forward on 8 March, the limit would be an hour off.
		zone, err := time.LoadLocation("America/New_York")
		testenv.Check(t, err)
		b.clock.stop()
		b.clock.move(time.Date(2026, 3, 10, 12, 0, 0, 0, zone).Sub(b.clock.Now()))
		b.clock.zone(zone)
		now := b.clock.Now()
		var marks []store.Mark
		for _, age := range []time.Duration{72*time.Hour - time.Minute, 72*time.Hour + 30*time.Second, 71 * time.Hour, 73 * time.Hour} {
			e := mark(m, tag, "ann")
			e.Time = now.Add(-age).UTC()
			marks = append(marks, e)
		}
		b.record(marks)
		b.changeMerchant(m, func(m *store.Merchant) { m.Retention = 3 })
		b.expectEvents(m, 2)
		b.expectPersonalData(m, who("ann"), 2, 0)
	}},
}

// erased erases a person, and returns the receipt when it is done.
func (b *bed) erased(m store.MerchantID, person store.Identity, suppress bool) store.Erasure {
	b.t.Helper()
	e, err := b.Erase(b.t.Context(), m, person, store.ErasureOptions{Suppress: suppress})
	testenv.Check(b.t, err)
	return b.done(e.ID)
}

// done waits until an erasure is done.
func (b *bed) done(id store.ErasureID) (e store.Erasure) {
	b.t.Helper()
	b.await("an erasure is not done", func() bool {
		e = b.erasure(id)
		return e.State == store.ErasureDone
	})
	return e
}

func (b *bed) erasure(id store.ErasureID) store.Erasure {
	b.t.Helper()
	e, err := b.Erasure(b.t.Context(), id)
	testenv.Check(b.t, err)
	return e
}

// await waits until a condition holds.
func (b *bed) await(otherwise string, holds func() bool) {
	b.t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("after a minute: %s", otherwise)
		}
	}
}

// awaitRemovals waits until only these removals are left, all of which have failed.
func (b *bed) awaitRemovals(want map[store.MerchantID]store.RemovalKind) {
	b.t.Helper()
	b.await("other removals are left", func() bool {
		left, err := b.Removals(b.t.Context())
		testenv.Check(b.t, err)
		for _, r := range left {
			if want[r.Merchant] != r.Kind || r.Attempts == 0 || r.LastError == "" || r.TriedAt.IsZero() || r.State == store.ErasureDone {
				return false
			}
		}
		return len(left) == len(want)
	})
}

// awaitStored waits until so many events of each of these merchants are stored.
func (b *bed) awaitStored(want uint64, merchants ...store.MerchantID) {
	b.t.Helper()
	b.await(fmt.Sprintf("other than %d events are stored", want), func() bool {
		usage, err := b.Usage(b.t.Context(), merchants)
		testenv.Check(b.t, err)
		return !slices.ContainsFunc(usage, func(u store.Usage) bool { return u.Events != want })
	})
}

// expectPersonalData expects how many events and links are held of a person.
func (b *bed) expectPersonalData(m store.MerchantID, person store.Identity, wantEvents, wantLinks int) {
	b.t.Helper()
	if events, links, _ := b.personalData(m, person, false); events != wantEvents || links != wantLinks {
		b.t.Errorf("%d events and %d links are held, want %d and %d", events, links, wantEvents, wantLinks)
	}
}

// expectClaimed expects how many events are held of a person, and how many more only claimed links lead to.
func (b *bed) expectClaimed(m store.MerchantID, person store.Identity, wantEvents, wantClaimed int) {
	b.t.Helper()
	if events, _, claimed := b.personalData(m, person, false); events != wantEvents || claimed != wantClaimed {
		b.t.Errorf("%d events and %d claimed ones are held, want %d and %d", events, claimed, wantEvents, wantClaimed)
	}
}

// personalData counts what is held of a person.
func (b *bed) personalData(m store.MerchantID, person store.Identity, withClaimed bool) (events, links, claimed int) {
	b.t.Helper()
	claimed, err := b.PersonalData(b.t.Context(), m, person, withClaimed, func(r *store.PersonalRecord) error {
		if r.Event != nil {
			events++
		} else {
			links++
		}
		return nil
	})
	testenv.Check(b.t, err)
	return events, links, claimed
}
