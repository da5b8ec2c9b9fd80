package rank

import "sync"

// nodeArena is the memory of decoded nodes. It was most of what a listing allocated, so readers reuse it.
type nodeArena struct {
	entries  []Entry
	children []child
	counts   counts
}

// maxKeptItems bounds the arenas that are reused, in items of each kind. Only merchants with nearly MaxSeries series need
// more.
const maxKeptItems = innerChildren * MaxSeries

// release gives the arena to the next reader, unless it is too large. Its nodes must not be used any more.
func (a *nodeArena) release(pool *sync.Pool) {
	if max(cap(a.entries), cap(a.children), cap(a.counts)) > maxKeptItems {
		return
	}
	a.reset()
	pool.Put(a)
}

func (a *nodeArena) reset() {
	clear(a.children) // they refer to counts
	a.entries, a.children, a.counts = a.entries[:0], a.children[:0], a.counts[:0]
}

// reserve makes room for n more items in s. Slices of the old items stay valid.
func reserve[S ~[]T, T any](s *S, n int) {
	if cap(*s)-len(*s) < n {
		*s = make(S, 0, max(n, 2*cap(*s)))
	}
}

// extend makes s longer by room items, or by n if that is more, and returns the first n of them. They hold what was
// there before. The rest is room for a node that is loaded to be changed.
func extend[T any](s *[]T, n, room int) []T {
	room = max(n, room)
	reserve(s, room)
	start := len(*s)
	*s = (*s)[:start+room]
	return (*s)[start : start+n : start+room]
}
