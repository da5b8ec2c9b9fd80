package rank

import "sync"

// nodeArena is the memory of decoded nodes. Without it, decoded nodes were most of what a listing allocated.
type nodeArena struct {
	entries  []entry
	children []child
	counts   counts
}

// maxKeptItems bounds the size of an arena that is reused, in items of each kind.
const maxKeptItems = 64 << 10

// release puts the arena into the pool, unless it is too large. Its nodes must not be used any more.
func (a *nodeArena) release(pool *sync.Pool) {
	if max(cap(a.entries), cap(a.children), cap(a.counts)) > maxKeptItems {
		return
	}
	a.reset()
	pool.Put(a)
}

func (a *nodeArena) reset() {
	clear(a.children) // they refer to counts
	clear(a.entries)  // and these to names
	a.entries, a.children, a.counts = a.entries[:0], a.children[:0], a.counts[:0]
}

// size returns the number of items of each kind.
func (a *nodeArena) size() [3]int { return [3]int{len(a.entries), len(a.children), len(a.counts)} }

// truncate gives back the memory of the nodes that were decoded since the arena had this size.
func (a *nodeArena) truncate(size [3]int) {
	a.entries = a.entries[:min(size[0], len(a.entries))] // reserve may have made it shorter
	a.children = a.children[:min(size[1], len(a.children))]
	a.counts = a.counts[:min(size[2], len(a.counts))]
}

// reserve makes room for n more items in s. Slices of the old items stay valid.
func reserve[S ~[]T, T any](s *S, n int) {
	if cap(*s)-len(*s) < n {
		*s = make(S, 0, max(n, 2*cap(*s)))
	}
}

// extend makes s longer by n items and returns these, for the caller to overwrite: they may have old values. The result
// has at least the given capacity, so that a node that is loaded to be changed can grow in place.
func extend[T any](s *[]T, n, capacity int) []T {
	capacity = max(n, capacity)
	reserve(s, capacity)
	start := len(*s)
	*s = (*s)[:start+capacity]
	return (*s)[start : start+n : start+capacity]
}
