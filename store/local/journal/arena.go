package journal

import "mtagd/store/local/codec"

// arena is the memory of one transaction. Badger needs its keys and values until the commit returns, and the callback
// reads the events after that. Slices of the arena stay valid when the arena grows.
type arena struct {
	chunks []byte        // chunks, one after the other
	packed []byte        // chunks in their stored form
	keys   []byte        // keys, and the values of remembered event_ids
	events []codec.Event // the events in chunks; their series alias chunks
}

// key returns what add appends to keys.
func (a *arena) key(add func([]byte) []byte) []byte {
	start := len(a.keys)
	a.keys = add(a.keys)
	return a.keys[start:len(a.keys):len(a.keys)]
}

// pack returns the stored form of a chunk.
func (a *arena) pack(chunk []byte) []byte {
	start := len(a.packed)
	a.packed = packChunk(a.packed, chunk)
	return a.packed[start:len(a.packed):len(a.packed)]
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
		return &arena{chunks: make([]byte, 0, 256<<10), packed: make([]byte, 0, 64<<10), keys: make([]byte, 0, 64<<10)}
	}
}

// put takes an arena back when nothing refers to it any more.
func (f arenas) put(a *arena) {
	clear(a.events) // their series may still alias an array that chunks has outgrown
	a.chunks, a.packed, a.keys, a.events = a.chunks[:0], a.packed[:0], a.keys[:0], a.events[:0]
	select {
	case f <- a:
	default:
	}
}
