package storetest

import (
	"slices"
	"testing"

	"mtagd/store"
)

var identityTests = []test{
	{"an identifier that was never linked resolves to nothing", func(t *testing.T, b *bed) {
		m, _ := b.shop()
		b.expectResolved(m, who("", email("a@example.com")), "")
	}},
	{"a muid resolves to itself", func(t *testing.T, b *bed) {
		m, _ := b.shop()
		b.expectResolved(m, who("user-1"), "user-1")
	}},
	{"a mark with a muid links all identifiers that come with it, after reopening too", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		b.record([]store.Mark{markOf(m, tag, who("user-1", email("a@example.com"), phone("1234"), device("d")))}, store.Recorded)
		for range b.reopened {
			b.expectResolved(m, who("", email("a@example.com")), "user-1")
			b.expectResolved(m, who("", phone("1234")), "user-1")
			b.expectResolved(m, who("", device("d")), "user-1")
		}
		b.record([]store.Mark{markOf(m, tag, who("", phone("1234")))}, store.Recorded)
		if events, _ := b.list(m); len(events) != 2 || events[1].MUID != "user-1" {
			t.Errorf("events %+v", events)
		}
	}},
	{"Resolve links the identifiers that come with a muid, after reopening too", func(t *testing.T, b *bed) {
		m, _ := b.shop()
		b.expectResolved(m, who("user-1", email("a@example.com"), device("d")), "user-1")
		for range b.reopened {
			b.expectResolved(m, who("", email("a@example.com")), "user-1")
			b.expectResolved(m, who("", device("d")), "user-1")
		}
		b.expectEvents(m, 0)
	}},
	{"Resolve without a muid links nothing", func(t *testing.T, b *bed) {
		m, _ := b.shop()
		b.resolve(m, who("user-1", email("a@example.com")))
		b.expectResolved(m, who("", email("a@example.com"), device("d")), "user-1")
		b.expectResolved(m, who("", device("d")), "")
	}},
	{"email has precedence over phone, and phone over deviceId, in whatever order they were added", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		b.resolve(m, who("by-device", device("d")))
		b.resolve(m, who("by-phone", phone("1234")))
		b.resolve(m, who("by-email", email("a@example.com")))
		b.expectResolved(m, who("", email("a@example.com"), phone("1234"), device("d")), "by-email")
		b.expectResolved(m, who("", device("d"), phone("1234"), email("a@example.com")), "by-email")
		b.expectResolved(m, who("", email("b@example.com"), phone("1234"), device("d")), "by-phone")
		b.expectResolved(m, who("", device("d"), phone("1234")), "by-phone")
		b.expectResolved(m, who("", email("b@example.com"), phone("99"), device("d")), "by-device")
		b.record([]store.Mark{markOf(m, tag, who("", email("b@example.com"), phone("1234"), device("d")))}, store.Recorded)
		if events, _ := b.list(m); len(events) != 1 || events[0].MUID != "by-phone" {
			t.Errorf("events %+v", events)
		}
	}},
	{"one value as email, phone and deviceId is three identifiers", func(t *testing.T, b *bed) {
		m, _ := b.shop()
		b.resolve(m, who("user-1", email("1234")))
		b.expectResolved(m, who("", phone("1234")), "")
		b.expectResolved(m, who("", device("1234")), "")
	}},
	{"a muid has precedence over every link", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		b.resolve(m, who("user-1", email("a@example.com")))
		b.record([]store.Mark{markOf(m, tag, who("user-2", device("d")))}, store.Recorded)
		if events, _ := b.list(m); len(events) != 1 || events[0].MUID != "user-2" {
			t.Errorf("events %+v", events)
		}
	}},
	{"the newest link wins, after reopening too", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		b.record([]store.Mark{markOf(m, tag, who("user-1", email("a@example.com")))}, store.Recorded)
		b.record([]store.Mark{markOf(m, tag, who("user-2", email("a@example.com")))}, store.Recorded)
		b.expectResolved(m, who("", email("a@example.com")), "user-2")
		b.resolve(m, who("user-3", email("a@example.com")))
		b.expectResolved(m, who("", email("a@example.com")), "user-3")
		old := markOf(m, tag, who("user-4", email("a@example.com")))
		old.Time = start.AddDate(-1, 0, 0) // newest by receipt, not by event_time
		b.record([]store.Mark{old}, store.Recorded)
		b.reopen()
		b.expectResolved(m, who("", email("a@example.com")), "user-4")
	}},
	{"a link counts for all tags of the merchant", func(t *testing.T, b *bed) {
		p := b.preverified(b.partner("Acme"), "track.acme.com")
		m := b.merchant(p, "Shop")
		client, own := b.tag(m, store.ClientSide, "").ID, b.tag(m, store.Preverified, "").ID
		b.record([]store.Mark{markOf(m.ID, client, who("user-1", email("a@example.com")))}, store.Recorded)
		b.record([]store.Mark{markOf(m.ID, own, who("", email("a@example.com")))}, store.Recorded)
	}},
	{"a link of one merchant does not count for another", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		first, second := b.merchant(p, "First"), b.merchant(p, "Second")
		tag1, tag2 := b.tag(first, store.ClientSide, "").ID, b.tag(second, store.ClientSide, "").ID
		b.record([]store.Mark{
			markOf(first.ID, tag1, who("user-1", email("a@example.com"))),
			markOf(second.ID, tag2, who("", email("a@example.com"))),
		}, store.Recorded, store.Unresolved)
		b.expectResolved(second.ID, who("", email("a@example.com")), "")
		b.resolve(second.ID, who("user-2", email("a@example.com")))
		b.expectResolved(first.ID, who("", email("a@example.com")), "user-1")
	}},
	{"a link counts for the later marks of the same call, not for the earlier ones", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		somebody := who("", email("a@example.com"))
		b.record([]store.Mark{
			markOf(m, tag, somebody),
			markOf(m, tag, who("user-1", email("a@example.com"))),
			markOf(m, tag, somebody),
			markOf(m, tag, who("user-2", email("a@example.com"))),
			markOf(m, tag, somebody),
		}, store.Unresolved, store.Recorded, store.Recorded, store.Recorded, store.Recorded)
		var muids []store.MUID
		events, _ := b.list(m)
		for _, e := range events {
			muids = append(muids, e.MUID)
		}
		if want := []store.MUID{"user-1", "user-1", "user-2", "user-2"}; !slices.Equal(muids, want) {
			t.Fatalf("muids %v, want %v", muids, want)
		}
		b.expectResolved(m, somebody, "user-2")
	}},
	{"identifiers linked at once by many calls all resolve", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		name := func(i int) string { return string(rune('a' + i)) }
		for _, err := range atOnce(16, func(i int) error {
			return b.Record(b.t.Context(), []store.Mark{markOf(m, tag, who(store.MUID("user-"+name(i)), email(name(i)+"@example.com")))})
		}) {
			if err != nil {
				t.Error(err)
			}
		}
		for i := range 16 {
			b.expectResolved(m, who("", email(name(i)+"@example.com")), store.MUID("user-"+name(i)))
		}
	}},
}
