package load

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"mtagd/bench"
)

// Kind is what is special about the events of a source.
type Kind uint8

// The kinds of events.
const (
	Plain      Kind = iota // one of 100,000 muids
	Identified             // with an email and an event_id, as the browser tag sends: the engine links and looks for duplicates
	Duplicates             // all with the same event_id
	Unresolved             // with an email that is linked to no muid: nothing is recorded
	Browser                // with all that the browser tag sends; bench.BrowserEventSize bytes
	Links                  // not events but identities for POST /id/:tagId, each linked to another muid than before
)

// Requests describes an endless source of POST requests for one tag.
type Requests struct {
	Batch int // events in each request; 1 is a single event, not an array
	Size  int // bytes of each event; 0: bench.EventSize, or that of the kind
	Kind  Kind
}

// Marks is an endless source of POST /mark requests for one tag. The target's path is /mark/:tagId.
func Marks(t Target, batch int, identified bool) func(b []byte) (request []byte, events int) {
	r := Requests{Batch: batch}
	if identified {
		r.Kind = Identified
	}
	return r.To(t)
}

// To returns the source of requests to a tag. The target's path is /mark/:tagId.
func (r Requests) To(t Target) func(b []byte) (request []byte, events int) {
	size := max(r.Size, bench.EventSize)
	if r.Kind == Browser {
		size = max(r.Size, bench.BrowserEventSize)
	}
	length := size
	if r.Batch > 1 {
		length = r.Batch*(size+1) + 1 // with brackets and commas
	}
	path := t.Path
	if r.Kind == Links {
		path = strings.Replace(path, "/mark/", "/id/", 1)
	}
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", path, t.Host, length)
	made := uint64(0)
	if r.Kind == Identified || r.Kind == Browser {
		made = rand.Uint64() // no two sources repeat an event_id
	}
	now := time.Now()
	appendEvent := func(b []byte) []byte {
		made++
		if r.Kind == Browser {
			return pad(bench.AppendBrowserEvent(b, made, bench.Names[made%uint64(len(bench.Names))], now), len(b)+size)
		}
		return r.Kind.appendEvent(b, made, size)
	}
	return func(b []byte) ([]byte, int) {
		b = append(b, head...)
		if r.Batch == 1 {
			return appendEvent(b), 1
		}
		for i := range r.Batch {
			b = append(b, "[,"[min(i, 1)])
			b = appendEvent(b)
		}
		return append(b, ']'), r.Batch
	}
}

// appendEvent appends the n-th event, size bytes of JSON.
func (k Kind) appendEvent(b []byte, n uint64, size int) []byte {
	start := len(b)
	switch k {
	case Plain, Identified:
		b = bench.AppendEvent(b, n, bench.Names[n%uint64(len(bench.Names))], time.Time{}, k == Identified)
	case Duplicates:
		b = append(b, `{"event":"Purchase","muid":"4be0643f-1d98-473b-97cd-ca9800000000","event_id":"order-1001"}`...)
	case Unresolved:
		b = fmt.Appendf(b, `{"event":"Purchase","email":"stranger%d@example.com"}`, n)
	case Links:
		b = fmt.Appendf(b, `{"muid":"4be0643f-1d98-473b-97cd-%012d","email":"user%d@example.com"}`, n, n%1000)
	}
	return pad(b, start+size)
}

// pad makes the event at the end of b longer, until b ends there.
func pad(b []byte, end int) []byte {
	if len(b) >= end {
		return b
	}
	b = append(b[:len(b)-1], `,"padding":"`...)
	for len(b) < end-2 {
		b = append(b, "comfortable shoes for long walks, "[(end-len(b))%34])
	}
	return append(b, `"}`...)
}
