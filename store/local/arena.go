package local

import "sync"

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

// nodeArena is the memory of the nodes that one reader decodes. It was most of what a listing allocated, so the next reader
// gets it.
type nodeArena struct {
	entries  []entry
	children []child
	counts   counts
}

// keptItems bounds what is kept for the next reader, of each kind. Merchants with nearly as many series as the index counts
// need more.
const keptItems = innerChildren * maxSeries

// free gives the arena to the next reader, unless it is larger than most need. Nobody uses its nodes any more.
func (a *nodeArena) free(pool *sync.Pool) {
	if max(cap(a.entries), cap(a.children), cap(a.counts)) > keptItems {
		return
	}
	a.reset()
	pool.Put(a)
}

func (a *nodeArena) reset() {
	clear(a.children) // they refer to counts
	a.entries, a.children, a.counts = a.entries[:0], a.children[:0], a.counts[:0]
}

// reserve makes room for n more items behind s. What is there already stays where it is, for those who have it.
func reserve[S ~[]T, T any](s *S, n int) {
	if cap(*s)-len(*s) < n {
		*s = make(S, 0, max(n, 2*cap(*s)))
	}
}

// extend makes s longer by room items, by n if that is more, and returns the first n. They hold what was there before; the rest
// is room for a node to grow that was loaded to be changed.
func extend[T any](s *[]T, n, room int) []T {
	room = max(n, room)
	reserve(s, room)
	start := len(*s)
	*s = (*s)[:start+room]
	return (*s)[start : start+n : start+room]
}
