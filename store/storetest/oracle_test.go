package storetest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"mtagd/store"
)

// oracle has one merchant's events as a slice, in the order of receipt. It sorts, filters and cuts that slice to compute
// what an engine's page must be.
type oracle struct {
	merchant store.MerchantID
	events   []*known
	sorted   map[order][]*known // the events in each order that was asked for; sorted again when events were added
}

// known is an event that the oracle knows. Its body has its number n, so that a test recognises the event in a listing:
// the oracle cannot know the id, which the engine makes.
type known struct {
	n    int // its place in the order of receipt
	tag  store.TagID
	muid store.MUID
	name string
	time time.Time
	raw  string
	bot  bool

	details store.Details
}

type order struct {
	by  store.SortKey
	asc bool
}

var everyOrder = []order{{store.ByTime, true}, {store.ByTime, false}, {store.ByName, true}, {store.ByName, false}}

// newShops creates n merchants with two tags each, and an oracle for each merchant.
func newShops(b *bed, n int) (oracles []*oracle, tags [][]store.TagID) {
	b.t.Helper()
	p := b.preverified(b.partner("Acme"), "track.acme.com")
	for range n {
		m := b.merchant(p, "Shop")
		oracles = append(oracles, &oracle{merchant: m.ID})
		tags = append(tags, []store.TagID{b.tag(m, store.ClientSide, "").ID, b.tag(m, store.Preverified, "").ID})
	}
	return oracles, tags
}

// mark adds an event to the oracle, and returns its mark. The test must record it.
func (o *oracle) mark(tag store.TagID, name string, at time.Time) store.Mark {
	n := len(o.events)
	k := &known{
		n: n, tag: tag, muid: store.MUID(fmt.Sprintf("user-%d", n%17)),
		name: name, time: at.Truncate(time.Microsecond), raw: fmt.Sprintf(`{"n":%d}`, n), bot: n%7 < 2, details: detailsOf(n),
	}
	o.events = append(o.events, k)
	return store.Mark{
		Merchant: o.merchant, Tag: tag, Identity: store.Identity{MUID: k.muid}, Name: name, Time: at, Raw: []byte(k.raw), Bot: k.bot, Details: k.details,
	}
}

// detailsOf returns details of all kinds, some of which are not set. Record sets ByClaim.
func detailsOf(n int) (d store.Details) {
	for i, v := range d.Values() {
		switch v := v.(type) {
		case *bool:
			*v = (n+i)%2 == 0
		case *[]byte:
			*v = bytes.Repeat([]byte{0, 1}, (n+i)%3)
		}
	}
	d.ByClaim = false
	return d
}

// sameDetails compares details as texts, in which bytes that are not set are empty.
func sameDetails(a, b store.Details) bool { return fmt.Sprint(a) == fmt.Sprint(b) }

// compare compares as the contract demands (store.ByTime, store.ByName).
func (o order) compare(a, b *known) int {
	sign := -1
	if o.asc {
		sign = 1
	}
	byTime := cmp.Or(a.time.Compare(b.time), cmp.Compare(a.n, b.n))
	if o.by == store.ByTime {
		return sign * byTime
	}
	return cmp.Or(sign*cmp.Compare(a.name, b.name), -byTime)
}

// inOrder returns the events in an order.
func (o *oracle) inOrder(way order) []*known {
	sorted := o.sorted[way]
	if len(sorted) != len(o.events) {
		sorted = slices.SortedFunc(slices.Values(o.events), way.compare)
		if o.sorted == nil {
			o.sorted = map[order][]*known{}
		}
		o.sorted[way] = sorted
	}
	return sorted
}

// matches reports whether a query selects the event, if it is one of the query's merchant.
func (k *known) matches(q store.Query) bool {
	return (q.Tag == "" || k.tag == q.Tag) && (q.Names == nil || slices.Contains(q.Names, k.name)) && (q.Bot == nil || k.bot == *q.Bot) &&
		(q.From == nil || !k.time.Before(*q.From)) && (q.To == nil || !k.time.After(*q.To))
}

// page returns the page that a query must give.
func (o *oracle) page(q store.Query) (page []*known, total int) {
	for _, k := range o.inOrder(order{q.SortBy, q.Asc}) {
		if !k.matches(q) {
			continue
		}
		if total >= q.Offset && len(page) < q.Limit {
			page = append(page, k)
		}
		total++
	}
	return page, total
}

// expect compares an engine's page with the oracle's, and reports whether they are the same. The engine must not change the
// query.
func (o *oracle) expect(t *testing.T, b *bed, q store.Query) bool {
	t.Helper()
	q.Merchant = o.merchant
	want, total := o.page(q)
	names := slices.Clone(q.Names)
	got, err := b.Events(t.Context(), q)
	if err != nil || !slices.Equal(names, q.Names) {
		t.Errorf("%s: %v; the names were %v", describe(q), err, names)
		return false
	}
	numbers := func() (n []int) {
		for _, k := range want {
			n = append(n, k.n)
		}
		return n
	}
	if got.Total != total || len(got.Events) != len(want) {
		t.Errorf("%s: %d events of %d, want %d of %d\n got numbers %v\nwant numbers %v",
			describe(q), len(got.Events), got.Total, len(want), total, numbersOf(got.Events), numbers())
		return false
	}
	for i, k := range want {
		e := got.Events[i]
		if string(e.Raw) != k.raw || e.MUID != k.muid || e.Name != k.name || !e.Time.Equal(k.time) || e.Bot != k.bot || !sameDetails(e.Details, k.details) {
			t.Errorf("%s: event %d of the page is %+v with body %s, want %+v\n got numbers %v\nwant numbers %v",
				describe(q), i, e, e.Raw, *k, numbersOf(got.Events), numbers())
			return false
		}
	}
	return true
}

// expectAllPages compares all pages of a listing, from the first one to one past the end, until one is wrong.
func expectAllPages(t *testing.T, b *bed, o *oracle, q store.Query, limit int) {
	t.Helper()
	q.Merchant, q.Limit = o.merchant, limit
	_, total := o.page(q)
	for q.Offset = 0; q.Offset < total+limit; q.Offset += limit {
		if !o.expect(t, b, q) {
			return
		}
	}
}

// expectEveryOrder compares all pages in each of the four orders.
func expectEveryOrder(t *testing.T, b *bed, o *oracle, limit int) {
	t.Helper()
	for _, way := range everyOrder {
		expectAllPages(t, b, o, store.Query{SortBy: way.by, Asc: way.asc}, limit)
	}
}

func numbersOf(events []store.Event) (n []int) {
	for _, e := range events {
		n = append(n, numberOf(e))
	}
	return n
}

// numberOf returns the number in an event's body; -1 when there is none.
func numberOf(e store.Event) int {
	body := struct{ N *int }{}
	if err := json.Unmarshal(e.Raw, &body); err != nil || body.N == nil {
		return -1
	}
	return *body.N
}

func describe(q store.Query) string {
	names := fmt.Sprint(q.Names)
	if len(q.Names) > 5 {
		names = fmt.Sprintf("%v and %d more", q.Names[:5], len(q.Names)-5)
	}
	when := func(t *time.Time) string {
		if t == nil {
			return "any time"
		}
		return t.Format(time.RFC3339Nano)
	}
	bots := "any sender"
	if q.Bot != nil {
		bots = fmt.Sprintf("bots %v", *q.Bot)
	}
	return fmt.Sprintf("tag %q names %s of %s from %s to %s by %s asc %v offset %d limit %d",
		q.Tag, names, bots, when(q.From), when(q.To), q.SortBy, q.Asc, q.Offset, q.Limit)
}
