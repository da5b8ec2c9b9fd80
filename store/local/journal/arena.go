package journal

import (
	"sync"

	"mtagd/store/local/codec"
)

// arena is the memory of one transaction, until the callback has read its events. Slices of the arena stay valid when the
// arena grows.
type arena struct {
	chunks []byte        // chunks, one after the other
	packed []byte        // the last one, as it is stored
	record []byte        // entries
	events []codec.Event // the events in chunks; their series alias chunks
}

// newArenas returns a pool of released arenas, for later transactions.
func newArenas() *sync.Pool {
	return &sync.Pool{New: func() any { return &arena{chunks: make([]byte, 0, 256<<10)} }}
}

// release empties an arena, to which nothing refers any more, for reuse.
func (a *arena) release(to *sync.Pool) {
	clear(a.events) // their series may still alias an array that chunks has outgrown
	a.chunks, a.record, a.events = a.chunks[:0], a.record[:0], a.events[:0]
	to.Put(a)
}
