// Package bench has the benchmarks of single steps, each in one process:
//
//	make bench-steps > new.txt
//	go run golang.org/x/perf/cmd/benchstat@latest old.txt new.txt
//
// The program in mtagbench measures the whole service, over loopback, from another process. Both use the files here:
//
//	events.go  the events that every benchmark sends
//	synced.go  the server that does nothing, and the one that syncs bodies to a file, with which mtagd is compared
//
// README.md explains the measurements and has the accepted results.
package bench

import (
	"math/bits"
	"strconv"
	"time"
)

// Names are the event names of every benchmark.
var Names = [...]string{
	"PageView", "ViewContent", "ViewItem", "ViewCart", "AddToCart", "RemoveFromCart", "AddToWishlist",
	"BeginCheckout", "AddShippingInfo", "AddPaymentInfo", "Purchase", "Refund", "Search", "Share", "Login",
	"Signup", "Subscribe", "Lead", "Contact", "NewsletterOpened",
}

// EventSize is the size of every event, in bytes of JSON.
const EventSize = 300

const users = 100_000 // number of different muids

// AppendEvent appends the n-th event, EventSize bytes of JSON. Events differ in muid, product and session, as real ones
// do, and cost little to make. at is the event_time; the zero time leaves it out. identified adds an email and an
// event_id, as the browser tag does: the engine then also links identities and drops duplicates.
func AppendEvent(b []byte, n uint64, name string, at time.Time, identified bool) []byte {
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
	return appendFill(b, start, EventSize)
}

// BrowserEventSize is the size of an event as the browser tag sends it, in bytes of JSON.
const BrowserEventSize = 720

// AppendBrowserEvent appends the n-th event as the browser tag sends it, BrowserEventSize bytes of JSON.
func AppendBrowserEvent(b []byte, n uint64, name string, at time.Time) []byte {
	start := len(b)
	random := mix(n)
	user := random % users
	b = append(b, `{"muid":"4be0643f-1d98-473b-97cd-ca98`...)
	b = appendDigits(b, user, 8)
	b = append(b, `","language":"en-GB","screen":"1920x1080","timezone":"Europe/Berlin","session_id":"`...)
	b = appendDigits(append(b, '1'), random>>8, 12)
	b = append(b, `","first_referrer":"https://www.google.com/","first_utm_source":"newsletter","utm_source":"newsletter","utm_medium":"email","consent":{"analytics_storage":"granted","ad_storage":"granted"},"event_time":"`...)
	b = at.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
	b = append(b, `","pageUrl":"https://shop.example/products/`...)
	b = appendDigits(b, random>>24, 6)
	b = append(b, `?utm_source=newsletter&utm_medium=email","referrer":"https://shop.example/categories/shoes","email":"user`...)
	b = appendDigits(b, user, 8)
	b = append(b, `@example.com","value":`...)
	b = appendDigits(append(b, '1'), random>>40, 3)
	b = append(b, `.5,"currency":"EUR","event":"`...)
	b = append(b, name...)
	b = append(b, `","event_id":"0b8f6b1e-52a3-4c1d-`...)
	b = append(appendHex(b, random>>48, 4), '-')
	b = appendHex(b, random, 12)
	b = append(b, `","pageTitle":"`...)
	return appendFill(b, start, BrowserEventSize)
}

// appendFill ends an event that began at start: a text gives it its size.
func appendFill(b []byte, start, size int) []byte {
	for len(b) < start+size-2 {
		b = append(b, "Comfortable shoes for long walks, in black and in brown "[(len(b)-start)%56])
	}
	return append(b, `"}`...)
}

// appendHex appends the last hexadecimal digits of n.
func appendHex(b []byte, n uint64, digits int) []byte {
	for i := digits - 1; i >= 0; i-- {
		b = append(b, "0123456789abcdef"[n>>(4*i)&15])
	}
	return b
}

// appendDigits appends the last digits of n, with leading zeros.
func appendDigits(b []byte, n uint64, digits int) []byte {
	b = append(b, "000000000000"[:digits]...)
	for i := len(b) - 1; i >= len(b)-digits; i-- {
		b[i] += byte(n % 10)
		n /= 10
	}
	return b
}

// mix is a hash of n. Every run gets the same values; successive ones are unrelated: their order helps no store.
func mix(n uint64) uint64 {
	high, low := bits.Mul64(n+0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9)
	return high ^ low ^ low>>29
}
