package journal

import "mtagd/store/local/codec"

// arena is the memory of one transaction, until the callback has read its events. Slices of the arena stay valid when the
// arena grows.
type arena struct {
	chunks []byte        // chunks, one after the other
	packed []byte        // the last one, as it is stored
	record []byte        // entries
	events []codec.Event // the events in chunks; their series alias chunks
}

// arenas keeps released arenas for later transactions.
type arenas chan *arena

// keptArenas is how many arenas are in use at most: an arena is released when the index has applied its events. The
// index queues the events of 16 transactions (maxQueue in rank) while it applies one and the committer writes another.
const keptArenas = 18

func (f arenas) get() *arena {
	select {
	case a := <-f:
		return a
	default:
		return &arena{chunks: make([]byte, 0, 256<<10)}
	}
}

// put takes an arena back when nothing refers to it any more.
func (f arenas) put(a *arena) {
	clear(a.events) // their series may still alias an array that chunks has outgrown
	a.chunks, a.record, a.events = a.chunks[:0], a.record[:0], a.events[:0]
	select {
	case f <- a:
	default:
	}
}
