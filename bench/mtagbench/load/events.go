package load

import (
	"fmt"
	"time"

	"mtagd/bench"
)

// Marks is an endless source of POST /mark requests for one tag. The target's path is /mark/:tagId. A batch of 1 is a
// single event, not an array. identified adds an email and an event_id to each event, as the browser tag does: the
// engine then also links identities and drops duplicates.
func Marks(t Target, batch int, identified bool) func(b []byte) (request []byte, events int) {
	length := bench.EventSize
	if batch > 1 {
		length = batch*(bench.EventSize+1) + 1 // with brackets and commas
	}
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", t.Path, t.Host, length)
	made := uint64(0)
	appendEvent := func(b []byte) []byte {
		made++
		return bench.AppendEvent(b, made, bench.Names[made%uint64(len(bench.Names))], time.Time{}, identified)
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
