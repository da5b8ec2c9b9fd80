package storetest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

// randomTime favours times that are hard for an index: equal ones, neighbours, round ones, and ones long before or
// after the others.
func randomTime(r *rand.Rand) time.Time {
	near := start.Add(time.Duration(r.Int64N(int64(30 * 24 * time.Hour))))
	switch r.IntN(10) {
	case 0, 1:
		return start
	case 2:
		return start.Add(time.Duration(r.IntN(7)-3) * time.Microsecond)
	case 3:
		return near.Truncate(pick(r, time.Second, time.Minute, time.Hour, 24*time.Hour))
	case 4:
		return near.Truncate(pick(r, time.Second, time.Minute, time.Hour, 24*time.Hour)).Add(-time.Microsecond)
	case 5:
		return time.UnixMicro(near.UnixMicro() >> r.IntN(48) << r.IntN(8))
	case 6:
		return time.Date(1+r.IntN(9999), time.Month(1+r.IntN(12)), 1+r.IntN(28), 0, 0, 0, 0, time.UTC)
	default:
		return near
	}
}

// randomName returns one of a few common names, some of which are prefixes of others, or one of many rare names.
func randomName(r *rand.Rand) string {
	if r.IntN(10) > 0 {
		return pick(r, "PageView", "PageView", "PageView", "Purchase", "PurchaseX", "P", "AddToCart", "Zz")
	}
	return fmt.Sprintf("Rare%d", r.IntN(50))
}

func randomQuery(r *rand.Rand, o *oracle, tags []store.TagID) store.Query {
	q := store.Query{Merchant: o.merchant, SortBy: pick(r, store.ByTime, store.ByName), Asc: r.IntN(2) == 0}
	if r.IntN(3) == 0 {
		q.Tag = pick(r, tags...)
	}
	if r.IntN(2) == 0 {
		for range 1 + r.IntN(4) {
			names := []string{randomName(r), randomName(r), randomName(r), "Unknown"}
			if len(o.events) > 0 {
				names = append(names, pick(r, o.events...).name)
			}
			q.Names = append(q.Names, pick(r, names...))
		}
	}
	if r.IntN(3) == 0 {
		q.Bot = new(r.IntN(2) == 0)
	}
	bound := func() time.Time {
		if r.IntN(3) == 0 || len(o.events) == 0 {
			return randomTime(r).Truncate(time.Microsecond)
		}
		at := pick(r, o.events...).time
		return at.Add(time.Duration(r.IntN(3)-1) * time.Microsecond)
	}
	if r.IntN(2) == 0 {
		q.From = new(bound())
	}
	if r.IntN(2) == 0 {
		q.To = new(bound())
	}
	if q.From != nil && q.To != nil && q.To.Before(*q.From) {
		q.From, q.To = q.To, q.From // ranges that end before they start have a test of their own
	}
	q.Limit = pick(r, 1, 2, 12, 99, 100, 1+r.IntN(100))
	_, total := o.page(q)
	q.Offset = max(0, pick(r, 0, r.IntN(total+1), r.IntN(total+1), total-q.Limit, total-1, total, total+1, math.MaxInt))
	return q
}

// expectRandom compares the pages of so many random queries, until one is wrong.
func expectRandom(t *testing.T, b *bed, r *rand.Rand, o *oracle, tags []store.TagID, queries int) {
	t.Helper()
	for range testenv.Rounds(queries) {
		if !o.expect(t, b, randomQuery(r, o, tags)) {
			return
		}
	}
}
