package load

import (
	"fmt"
	"math/rand/v2"
	"time"

	"mtagd/bench"
)

// Kind is what is special about the events of a source.
type Kind uint8

// The kinds of events.
const (
	Plain      Kind = iota // one of 100,000 muids
	Identified             // with an email and an event_id: the engine links identifiers and looks for duplicates
	Browser                // with all that the browser tag sends; bench.BrowserEventSize bytes
)

// Marks is an endless source of POST /mark requests for one tag, each with batch events. With batch 1, the body is an
// object, not an array. The target's path is /mark/:tagId.
func Marks(t Target, kind Kind, batch int) func(b []byte) (request []byte, events int) {
	size := bench.EventSize
	if kind == Browser {
		size = bench.BrowserEventSize
	}
	length := size
	if batch > 1 {
		length = batch*(size+1) + 1 // brackets and commas included
	}
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", t.Path, t.Host, length)
	made := uint64(0)
	if kind != Plain {
		made = rand.Uint64() // no two sources repeat an event_id
	}
	now := time.Now()
	appendEvent := func(b []byte) []byte {
		made++
		name := bench.Names[made%uint64(len(bench.Names))]
		if kind == Browser {
			return bench.AppendBrowserEvent(b, made, name, now)
		}
		return bench.AppendEvent(b, made, name, time.Time{}, kind == Identified)
	}
	return func(b []byte) ([]byte, int) {
		b = append(b, head...)
		if batch == 1 {
			return appendEvent(b), 1
		}
		for i := range batch {
			b = append(b, "[,"[min(i, 1)])
			b = appendEvent(b)
		}
		return append(b, ']'), batch
	}
}
