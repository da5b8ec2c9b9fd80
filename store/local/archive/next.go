package archive

import (
	"context"
	"slices"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
)

// Received is an event of any merchant.
type Received struct {
	Merchant store.MerchantKey
	Event
}

// Next is what Archive.Next has read.
type Next struct {
	Events  []Received     // in the order of receipt
	UpTo    store.Position // all events up to here were read, except the damaged ones
	Damaged Damaged
}

// Unread is the error of Next when a table is damaged where it has events of a merchant.
type Unread struct {
	Merchant store.MerchantKey
	Err      error
}

func (u Unread) Error() string { return u.Err.Error() }
func (u Unread) Unwrap() error { return u.Err }

// nextBytes bounds the bodies that a call of Next returns, except for one that is larger.
const nextBytes = 8 << 20

// Next reads the first n events of merchants after a position, or fewer, up to and including upTo. It reads at least one
// block of each merchant that has events there.
func (a *Archive) Next(ctx context.Context, merchants []store.MerchantKey, after, upTo store.Position, n int) (Next, error) {
	f := first{n: n, upTo: upTo}
	var damaged Damaged
	var memory memory
	err := a.db.View(func(txn *badgerdb.Txn) error {
		it := txn.NewIterator(badgerdb.IteratorOptions{})
		for _, m := range merchants {
			if err := ctx.Err(); err != nil {
				return err
			}
			from := after
			f.ofOne = 0
			if err := a.eachBlock(txn, it, m, after, upTo, (*[]Damage)(&damaged), func(k blockKey, stored []byte) bool {
				if b, _, err := readHeader(stored); err == nil && b.merchant == m && b.last == k.last && b.first.Compare(f.upTo) > 0 {
					return false
				}
				more := true
				b, err := a.coder.unpack(&memory, k, stored)
				if err == nil {
					err = b.each(func(e Event) bool {
						if e.Compare(after) > 0 {
							more = f.add(m, e)
						}
						return more
					})
				}
				if err != nil {
					damaged, more = append(damaged, Damage{m, from, k.last, err}), true
				}
				from = k.last
				return more
			}); err != nil {
				return Unread{m, err}
			}
		}
		return nil
	})
	f.cut()
	// The next call meets the damage after the last returned event again.
	damaged = slices.DeleteFunc(damaged, func(d Damage) bool { return d.After.Compare(f.upTo) >= 0 })
	return Next{f.events, f.upTo, damaged}, err
}

// first collects the first n events of several merchants, whose events come one merchant after the other.
type first struct {
	n      int
	upTo   store.Position // later events are not among the first
	events []Received
	bytes  int // of their bodies
	ofOne  int // events of the merchant that were added
}

// add adds an event. It returns false when later events of the merchant need not be added.
func (f *first) add(m store.MerchantKey, e Event) (more bool) {
	if e.Compare(f.upTo) > 0 {
		return false
	}
	e.Body = slices.Clone(e.Body)
	f.events = append(f.events, Received{m, e})
	f.bytes += len(e.Body)
	if len(f.events) >= 2*f.n || f.bytes >= 2*nextBytes {
		f.cut()
	}
	f.ofOne++
	return e.Compare(f.upTo) < 0 && f.ofOne <= f.n // one more, so that cut sees that there are more
}

// cut leaves the first n events, and of these the first nextBytes.
func (f *first) cut() {
	slices.SortFunc(f.events, func(a, b Received) int { return a.Compare(b.Position) })
	f.bytes = 0
	for i, e := range f.events {
		if i > 0 && (i >= f.n || f.bytes+len(e.Body) > nextBytes) {
			clear(f.events[i:])
			f.events = f.events[:i]
			f.upTo = f.events[i-1].Position
			return
		}
		f.bytes += len(e.Body)
	}
}
