package local

// arena is the memory of one group on its way to disk: Badger keeps what it is given until the
// commit returns, and the index reads the chunks after that. A slice taken from it stays valid when it grows.
type arena struct {
	events []byte // chunks
	packed []byte // their stored form
	keys   []byte // keys, and small values of other entries
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

// arenas keeps used arenas for the next groups.
type arenas chan *arena

func (f arenas) get() *arena {
	select {
	case a := <-f:
		return a
	default:
		return &arena{events: make([]byte, 0, 256<<10), packed: make([]byte, 0, 64<<10), keys: make([]byte, 0, 64<<10)}
	}
}

// put takes an arena back when nothing refers to it any more.
func (f arenas) put(a *arena) {
	a.events, a.packed, a.keys = a.events[:0], a.packed[:0], a.keys[:0]
	select {
	case f <- a:
	default:
	}
}
