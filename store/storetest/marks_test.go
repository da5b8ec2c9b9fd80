package storetest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"mtagd/store"
)

// aliased returns a field as a string, and the memory that it aliases. A test overwrites the memory after Record, as the
// tag server does.
func aliased(field string) (string, []byte) {
	memory := []byte(field)
	return unsafe.String(unsafe.SliceData(memory), len(memory)), memory
}

var markTests = []test{
	{"a recorded event is listed as it was sent, and after reopening too", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		sent := mark(m, tag, "user-1")
		sent.Time = time.Date(2026, 2, 28, 23, 59, 59, 123_456_789, time.FixedZone("", 2*3600))
		sent.Raw = []byte("{ \"a\":1.0, \"b\" : \"ü\\u0000\", \"a\":2}\n")
		marks := []store.Mark{sent}
		b.record(marks, store.Recorded)
		for when := range b.reopened {
			events, total := b.list(m)
			if len(events) != 1 || total != 1 {
				t.Fatalf("%s: %d events, total %d", when, len(events), total)
			}
			got := events[0]
			want := sent.Time.Truncate(time.Microsecond)
			if len(got.ID) != 20 || got.MUID != "user-1" || got.Name != "Purchase" || !bytes.Equal(got.Raw, sent.Raw) ||
				!got.Time.Equal(want) || got.Time.Location() != time.UTC {
				t.Errorf("%s: %+v with %q; want %v in UTC and %q", when, got, got.Raw, want, sent.Raw)
			}
		}
	}},
	{"an engine does not use a mark's memory once Record has returned", func(t *testing.T, b *bed) {
		shop, tag := b.shop()
		var memories [][]byte
		for i := range 3 {
			var own store.Mark
			for _, field := range []struct {
				value string
				set   func(string)
			}{
				{string(shop), func(s string) { own.Merchant = store.MerchantID(s) }},
				{string(tag), func(s string) { own.Tag = store.TagID(s) }},
				{"user-1", func(s string) { own.Identity.MUID = store.MUID(s) }},
				{"Purchase", func(s string) { own.Name = s }},
				{fmt.Sprintf("order-%d", i), func(s string) { own.DedupeID = s }},
			} {
				s, memory := aliased(field.value)
				field.set(s)
				memories = append(memories, memory)
			}
			own.Identity.Add(store.Email, "a@example.com")
			own.Time, own.Raw = start, []byte(`{"n":1}`)
			memories = append(memories, own.Raw)
			b.record([]store.Mark{own}, store.Recorded)
			for _, memory := range memories {
				copy(memory, bytes.Repeat([]byte("#"), len(memory)))
			}
		}
		for when := range b.reopened {
			page, err := b.Events(t.Context(), store.Query{Merchant: shop, Tag: tag, Names: []string{"Purchase"}, SortBy: store.ByName, Limit: 10})
			if err != nil || page.Total != 3 || len(page.Events) != 3 {
				t.Fatalf("%s: %+v, %v; want 3 events", when, page, err)
			}
			for _, e := range page.Events {
				if e.MUID != "user-1" || e.Name != "Purchase" || string(e.Raw) != `{"n":1}` {
					t.Errorf("%s: %+v with %s", when, e, e.Raw)
				}
			}
			b.record([]store.Mark{withEventID(mark(shop, tag, "user-1"), "order-1")}, store.Duplicate)
			b.expectResolved(shop, who("", email("a@example.com")), "user-1")
		}
	}},
	{"ids are unique and sort in the order of receipt, whatever the clock does", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		b.clock.stop()
		n := 0
		receive := func(count int) {
			var marks []store.Mark
			for range count {
				e := mark(m, tag, "user-1")
				e.Time = start.Add(time.Duration(n) * time.Microsecond)
				n++
				marks = append(marks, e)
			}
			b.record(marks)
		}
		receive(3)
		for range 5 {
			receive(1)
		}
		b.reopen()
		receive(2)
		b.clock.move(-time.Hour)
		receive(2)
		b.reopen()
		receive(2)
		b.clock.move(2 * time.Hour)
		receive(2)
		events, _ := b.list(m)
		if len(events) != n {
			t.Fatalf("%d events, want %d", len(events), n)
		}
		for i := 1; i < n; i++ {
			if events[i-1].ID >= events[i].ID {
				t.Errorf("event %d has id %s, the next one has %s, which must be greater", i-1, events[i-1].ID, events[i].ID)
			}
		}
	}},
	{"an event_id and name of a merchant are recorded once, within one call and across calls and tags", func(t *testing.T, b *bed) {
		p := b.preverified(b.partner("Acme"), "track.acme.com")
		shop := b.merchant(p, "Shop")
		m, tag, second := shop.ID, b.tag(shop, store.ClientSide, "").ID, b.tag(shop, store.Preverified, "").ID
		b.record([]store.Mark{
			withEventID(mark(m, tag, "user-1"), "order-1"),
			withEventID(mark(m, tag, "user-1"), "order-1"),
			withEventID(mark(m, tag, "user-1"), "order-2"),
			mark(m, tag, "user-1"),
			mark(m, tag, "user-1"),
		}, store.Recorded, store.Duplicate, store.Recorded, store.Recorded, store.Recorded)
		b.record([]store.Mark{
			withEventID(mark(m, second, "user-2"), "order-1"),
			withEventID(mark(m, tag, "user-1"), "ORDER-1"),
		}, store.Duplicate, store.Recorded)
		b.expectEvents(m, 5)
	}},
	{"an event_id counts only together with the event's name", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		named := func(name, id string) store.Mark {
			e := withEventID(mark(m, tag, "user-1"), id)
			e.Name = name
			return e
		}
		b.record([]store.Mark{named("Junk", "order-1"), named("Purchase", "order-1"), named("Purchase", "order-1"), named("Junk", "order-1")},
			store.Recorded, store.Recorded, store.Duplicate, store.Duplicate)
		b.record([]store.Mark{named("A", "Border-1"), named("AB", "order-1")}, store.Recorded, store.Recorded)
		b.reopen()
		b.record([]store.Mark{named("Purchase", "order-1"), named("Refund", "order-1")}, store.Duplicate, store.Recorded)
		b.expectEvents(m, 5)
	}},
	{"an event_id of one merchant does not count for another", func(t *testing.T, b *bed) {
		m1, tag1 := b.shop()
		m2, tag2 := b.shop()
		b.record([]store.Mark{
			withEventID(mark(m1, tag1, "user-1"), "order-1"),
			withEventID(mark(m2, tag2, "user-1"), "order-1"),
		}, store.Recorded, store.Recorded)
	}},
	{"an event_id is remembered for 7 days from its first receipt, after reopening too", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		again := func(want store.Outcome) {
			t.Helper()
			e := withEventID(mark(m, tag, "user-1"), "order-1")
			e.Time = start.AddDate(-1, 0, 0) // the window is of receipt, not of event_time
			b.record([]store.Mark{e}, want)
		}
		again(store.Recorded)
		b.clock.move(store.DedupeWindow - time.Hour)
		again(store.Duplicate)
		b.reopen()
		again(store.Duplicate)
		b.clock.move(2 * time.Hour) // the duplicates in between do not prolong it
		again(store.Recorded)
		again(store.Duplicate)
		b.expectEvents(m, 2)
		b.clock.move(store.DedupeWindow + time.Hour)
		b.reopen()
		again(store.Recorded)
		b.expectEvents(m, 3)
	}},
	{"when 16 calls send one event_id at once, one is recorded", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		outcomes := atOnce(16, func(int) store.Outcome {
			marks := []store.Mark{withEventID(mark(m, tag, "user-1"), "order-1")}
			if err := b.Record(b.t.Context(), marks); err != nil {
				t.Error(err)
			}
			return marks[0].Outcome
		})
		slices.Sort(outcomes)
		if outcomes[0] != store.Recorded || outcomes[1] != store.Duplicate || outcomes[15] != store.Duplicate {
			t.Errorf("sorted outcomes %v, want %d once and %d 15 times", outcomes, store.Recorded, store.Duplicate)
		}
		b.expectEvents(m, 1)
	}},
	{"a duplicate neither links nor appends", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		b.record([]store.Mark{withEventID(mark(m, tag, "user-1"), "order-1")}, store.Recorded)
		again := withEventID(mark(m, tag, "user-2"), "order-1")
		again.Identity = who("user-2", email("a@example.com"))
		b.record([]store.Mark{again}, store.Duplicate)
		b.expectResolved(m, who("", email("a@example.com")), "")
		b.expectEvents(m, 1)
	}},
	{"nothing of an unresolved mark is kept, and its event_id is not remembered", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		unknown := withEventID(mark(m, tag, ""), "order-1")
		unknown.Identity = who("", email("a@example.com"), phone("+49 170 1"))
		b.record([]store.Mark{unknown}, store.Unresolved)
		b.expectEvents(m, 0)
		b.resolve(m, who("user-1", email("a@example.com")))
		b.record([]store.Mark{unknown}, store.Recorded)
		b.record([]store.Mark{unknown}, store.Duplicate)
		b.expectResolved(m, who("", phone("+49 170 1")), "") // a resolved mark links nothing either
		b.expectEvents(m, 1)
	}},
	{"a body of 64 KiB and one of two bytes are listed as they were sent", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		large := mark(m, tag, "user-1")
		large.Raw = fmt.Appendf(nil, `{"a":"%s"}`, strings.Repeat("\xc3\xbc", (store.MaxEventBytes-8)/2))
		small := mark(m, tag, "user-1")
		small.Time = start.Add(time.Second)
		b.record([]store.Mark{large, small}, store.Recorded, store.Recorded)
		for when := range b.reopened {
			events, _ := b.list(m)
			if len(events) != 2 || !bytes.Equal(events[0].Raw, large.Raw) || !bytes.Equal(events[1].Raw, small.Raw) {
				t.Errorf("%s: the bodies of %d events are not those that were sent", when, len(events))
			}
		}
	}},
	{"a full batch of 1000 marks and 1 MiB is recorded whole", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		var marks []store.Mark
		for i := range store.MaxBatchEvents {
			e := withEventID(mark(m, tag, store.MUID(fmt.Sprintf("user-%d", i))), strings.Repeat("😀", store.MaxDedupeIDLength-9)+fmt.Sprintf("%09d", i))
			e.Identity = who(e.Identity.MUID, email(fmt.Sprintf("%d@example.com", i)), phone(fmt.Sprint(1000+i)), device(fmt.Sprint(i)))
			e.Name = fmt.Sprintf("Event%d", i)
			e.Time = start.Add(time.Duration(i) * time.Hour)
			e.Raw = fmt.Appendf(nil, `{"a":"%s"}`, strings.Repeat("x", store.MaxBatchBytes/store.MaxBatchEvents-8))
			marks = append(marks, e)
		}
		b.record(marks, slices.Repeat([]store.Outcome{store.Recorded}, len(marks))...)
		b.reopen()
		b.expectEvents(m, len(marks))
		b.expectResolved(m, who("", device("999")), "user-999")
		b.record(marks, slices.Repeat([]store.Outcome{store.Duplicate}, len(marks))...)
		b.expectEvents(m, len(marks))
	}},
	{"a muid of 256 bytes is accepted; with a longer one, none of the marks is recorded", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		longest := store.MUID(strings.Repeat("x", store.MaxMUIDLength))
		b.record([]store.Mark{mark(m, tag, longest)}, store.Recorded)
		expectKind(t, b.Record(b.t.Context(), []store.Mark{mark(m, tag, "user-1"), mark(m, tag, longest+"x")}), store.KindInvalid)
		_, err := b.Resolve(b.t.Context(), m, who(longest+"x", email("a@example.com")))
		expectKind(t, err, store.KindInvalid)
		b.expectResolved(m, who("", email("a@example.com")), "")
		if events, _ := b.list(m); len(events) != 1 || events[0].MUID != longest {
			t.Errorf("events %+v, want one with the longest muid", events)
		}
	}},
	{"the last event of a tag is its newest by event_time, and after reopening too", func(t *testing.T, b *bed) {
		p := b.preverified(b.partner("Acme"), "track.acme.com")
		shop := b.merchant(p, "Shop")
		m, tag, second := shop.ID, b.tag(shop, store.ClientSide, "").ID, b.tag(shop, store.Preverified, "").ID
		other, otherTag := b.shop()
		late := func(m store.MerchantID, tag store.TagID, d time.Duration) store.Mark {
			e := mark(m, tag, "user-1")
			e.Time = start.Add(d)
			return e
		}
		b.record([]store.Mark{late(m, tag, 2*time.Hour), late(m, second, 3*time.Hour)})
		b.record([]store.Mark{late(m, tag, time.Hour), late(other, otherTag, 9*time.Hour)})
		for when := range b.reopened {
			for id, want := range map[store.TagID]time.Time{
				tag: start.Add(2 * time.Hour), second: start.Add(3 * time.Hour), otherTag: {}, store.NewTagID(store.ClientSide): {},
			} {
				page, err := b.Events(t.Context(), store.Query{Merchant: m, Tag: id, SortBy: store.ByTime, Limit: 1})
				var got time.Time
				if len(page.Events) > 0 {
					got = page.Events[0].Time
				}
				if err != nil || !got.Equal(want) {
					t.Errorf("%s: the last event of tag %s is at %v, %v; want %v", when, id, got, err, want)
				}
			}
		}
	}},
}
