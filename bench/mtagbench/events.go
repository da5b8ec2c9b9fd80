package main

import (
	"fmt"
	"math/bits"
	"strconv"
	"time"
)

// names are the event names of every benchmark.
var names = [...]string{
	"PageView", "ViewContent", "ViewItem", "ViewCart", "AddToCart", "RemoveFromCart", "AddToWishlist",
	"BeginCheckout", "AddShippingInfo", "AddPaymentInfo", "Purchase", "Refund", "Search", "Share", "Login",
	"Signup", "Subscribe", "Lead", "Contact", "NewsletterOpened",
}

const (
	eventSize = 300     // bytes of an event's JSON
	users     = 100_000 // different muids
)

// marks makes POST /mark requests for one tag. Its events differ as real ones do (by name, muid,
// product, session), have one size, and cost little to make.
type marks struct {
	head  []byte // of every request
	batch int    // events per request; 1 is a single event, not an array
	made  uint64 // events so far

	// identified adds an email and an event_id to each event, as the browser tag does: the engine
	// then has to link and to deduplicate too.
	identified bool
}

// newMarks makes requests for a target whose path is /mark/:tagId.
func newMarks(t target, batch int, identified bool) *marks {
	length := eventSize
	if batch > 1 {
		length = batch*(eventSize+1) + 1 // brackets, and commas between
	}
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", t.path, t.host, length)
	return &marks{head: []byte(head), batch: batch, identified: identified}
}

// next is the source of a phase; it never ends.
func (m *marks) next(b []byte) (request []byte, events int) {
	b = append(b, m.head...)
	if m.batch == 1 {
		return m.event(b), 1
	}
	for i := range m.batch {
		b = append(b, "[,"[min(i, 1)])
		b = m.event(b)
	}
	return append(b, ']'), m.batch
}

func (m *marks) event(b []byte) []byte {
	m.made++
	return appendEvent(b, m.made, names[m.made%uint64(len(names))], time.Time{}, m.identified)
}

// appendEvent appends the n-th event, eventSize bytes of JSON.
func appendEvent(b []byte, n uint64, name string, at time.Time, identified bool) []byte {
	start := len(b)
	random := mix(n)
	user := random % users
	b = append(b, `{"event":"`...)
	b = append(b, name...)
	b = append(b, `","muid":"4be0643f-1d98-473b-97cd-ca98`...)
	b = appendDigits(b, user, 8)
	b = append(b, `","event_source":"server`...)
	if !at.IsZero() {
		b = append(b, `","event_time":"`...)
		b = at.AppendFormat(b, "2006-01-02T15:04:05.000000Z")
	}
	if identified {
		b = append(b, `","email":"user`...)
		b = appendDigits(b, user, 8)
		b = append(b, `@example.com","event_id":"`...)
		b = strconv.AppendUint(b, random, 16)
	}
	b = append(b, `","session":"`...)
	b = appendDigits(b, random>>8, 12)
	b = append(b, `","pageUrl":"https://shop.example/products/`...)
	b = appendDigits(b, random>>24, 6)
	b = append(b, `","value":`...)
	b = appendDigits(append(b, '1'), random>>40, 3)
	b = append(b, `.5,"currency":"EUR","description":"`...)
	for len(b) < start+eventSize-2 {
		b = append(b, "Comfortable shoes for long walks, in black and in brown "[(len(b)-start)%56])
	}
	return append(b, `"}`...)
}

// appendDigits appends the last digits of n.
func appendDigits(b []byte, n uint64, digits int) []byte {
	for range digits {
		b = append(b, '0')
	}
	for i := len(b) - 1; i >= len(b)-digits; i-- {
		b[i] += byte(n % 10)
		n /= 10
	}
	return b
}

// mix spreads n over all 64 bits: the same events in every run, in no order that a store could profit from.
func mix(n uint64) uint64 {
	high, low := bits.Mul64(n+0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9)
	return high ^ low ^ low>>29
}
