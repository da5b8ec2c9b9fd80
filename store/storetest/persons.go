package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"mtagd/store"
)

var personTests = []test{
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
		for range 2 {
			b.expectEvents(m, 1)
			b.expectPersonalData(m, who("", email("ann@example.com")), 0, 0)
			b.expectPersonalData(m, who("", email("bob@example.com")), 1, 1)
			b.reopen()
		}
	}},
	{"after an erasure with suppress, events of the person are refused, also by an identifier alone that nothing is linked to", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		b.record([]store.Mark{markOf(m, tag, who("ann", email("ann@example.com"), phone("123")))})
		b.erased(m, who("", email("ann@example.com")), true)
		for range 2 {
			b.record([]store.Mark{
				markOf(m, tag, who("", email("ann@example.com"))), markOf(m, tag, who("", phone("123"))), mark(m, tag, "ann"),
				markOf(m, tag, who("new", email("ann@example.com"))), markOf(m, tag, who("", email("bob@example.com"))), mark(m, tag, "bob"),
			}, store.Suppressed, store.Suppressed, store.Suppressed, store.Suppressed, store.Unresolved, store.Recorded)
			b.reopen()
		}
	}},
	{"the same erasure again is the same one while it has not begun, with suppress added", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		b.record([]store.Mark{mark(m, tag, "ann")})
		seen := map[store.ErasureID]bool{}
		for i := range 20 {
			e, err := b.Erase(t.Context(), m, who("ann"), i > 0)
			if err != nil {
				t.Fatal(err)
			}
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
			e, err := b.Erase(t.Context(), m, who(store.MUID(fmt.Sprintf("user-%d", i))), false)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, e.ID)
		}
		for range 2 {
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
			b.reopen()
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
	{"what is past the retention is in no answer, by days of UTC in any time zone of the process", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		// With clocks of New York, which are put forward on 8 March, the limit would be an hour off.
		zone, err := time.LoadLocation("America/New_York")
		if err != nil {
			t.Fatal(err)
		}
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
		if _, err := b.UpdateMerchant(t.Context(), m, func(m store.Merchant) store.Merchant { m.Retention = 3; return m }); err != nil {
			t.Fatal(err)
		}
		b.expectEvents(m, 2)
		b.expectPersonalData(m, who("ann"), 2, 0)
	}},
}

// erased erases a person, and returns the receipt when it is done.
func (b *bed) erased(m store.MerchantID, person store.Identity, suppress bool) store.Erasure {
	b.t.Helper()
	e, err := b.Erase(b.t.Context(), m, person, suppress)
	if err != nil {
		b.t.Fatal(err)
	}
	return b.done(e.ID)
}

// done waits until an erasure is done.
func (b *bed) done(id store.ErasureID) store.Erasure {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	for {
		e, err := b.Erasure(ctx, id)
		if err != nil {
			b.t.Fatal(err)
		}
		if e.State == store.ErasureDone {
			return e
		}
		time.Sleep(time.Millisecond)
	}
}

// expectPersonalData expects how many events and links are held of a person.
func (b *bed) expectPersonalData(m store.MerchantID, person store.Identity, wantEvents, wantLinks int) {
	b.t.Helper()
	events, links := 0, 0
	if err := b.PersonalData(b.t.Context(), m, person, func(r *store.PersonalRecord) error {
		if r.Event != nil {
			events++
		} else {
			links++
		}
		return nil
	}); err != nil || events != wantEvents || links != wantLinks {
		b.t.Errorf("%d events and %d links are held, %v; want %d and %d", events, links, err, wantEvents, wantLinks)
	}
}
