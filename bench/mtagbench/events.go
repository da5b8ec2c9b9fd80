package main

import (
	"fmt"
	"time"

	"mtagd/bench"
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
	length := bench.EventSize
	if batch > 1 {
		length = batch*(bench.EventSize+1) + 1 // brackets, and commas between
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
	return bench.AppendEvent(b, m.made, bench.Names[m.made%uint64(len(bench.Names))], time.Time{}, m.identified)
}
