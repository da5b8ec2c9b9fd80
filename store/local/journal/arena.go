package journal

import "mtagd/store/local/codec"

// arena is the memory of one transaction. Badger needs its keys and values until the commit returns, and the callback
// reads the events after that. A slice of the arena stays valid when the arena grows.
type arena struct {
	chunks []byte        // chunks, one after the other
	packed []byte        // chunks as they are stored
	keys   []byte        // keys, and small values of other entries
	events []codec.Event // of the chunks; their series alias chunks
}

// key returns what add appends, as a slice of its own.
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

// arenas keeps used arenas for later transactions. An arena is in use until the index has applied its events, so there
// is room for as many as may be queued there.
type arenas chan *arena

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
	clear(a.events) // their series may keep memory alive that chunks has outgrown
	a.chunks, a.packed, a.keys, a.events = a.chunks[:0], a.packed[:0], a.keys[:0], a.events[:0]
	select {
	case f <- a:
	default:
	}
}
