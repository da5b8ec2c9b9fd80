package rank

import (
	"context"
	"sort"
	"sync"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// reader reads one merchant's trees, as of one moment. Some methods count or collect only the events of some series. Their
// argument members has true for each number of such a series; nil stands for all series.
type reader struct {
	pages
	series  []string        // by number
	counted map[string]bool // of these; nil: see counts
	trees   []*child        // the roots of the stored tree and of those in memory, without empty ones
	runs    []*run          // stored, and in memory
	upTo    uint64          // the events of chunks up to this seq are in these
}

// pages reads the stored nodes of a merchant's trees.
type pages struct {
	ctx    context.Context // of the query
	m      store.MerchantKey
	nodes  *bolt.Bucket
	loaded map[uint64]*node // nodes that were read, by id
	arena  *nodeArena       // their memory
	loads  int              // how many nodes were read
}

func newPages(ctx context.Context, tx *bolt.Tx, m store.MerchantKey, arena *nodeArena) *pages {
	return &pages{ctx: ctx, m: m, nodes: tx.Bucket(bucketNodes), loaded: map[uint64]*node{}, arena: arena}
}

// load reads a child's node. When the query's context has ended, it returns its error.
func (r *pages) load(c *child) (*node, error) {
	if err := r.ctx.Err(); err != nil {
		return nil, err
	}
	r.loads++
	return loadNode(r.nodes, r.m, c.id, r.arena)
}

// node returns a child's node.
func (r *pages) node(c *child) (*node, error) {
	if c.node != nil {
		return c.node, nil
	}
	if n, ok := r.loaded[c.id]; ok {
		return n, nil
	}
	n, err := r.load(c)
	if err == nil {
		r.loaded[c.id] = n
	}
	return n, err
}

// visit calls use with a child's node. It keeps no node in memory: there may be too many.
func (r *pages) visit(c *child, use func(n *node) error) error {
	if c.node != nil {
		return use(c.node)
	}
	defer r.arena.truncate(r.arena.size())
	n, err := r.load(c)
	if err != nil {
		return err
	}
	return use(n)
}

// each calls use with the events below c, in their order.
func (r *pages) each(c *child, use func(e *entry)) error {
	return r.visit(c, func(n *node) error {
		for i := range n.entries {
			use(&n.entries[i])
		}
		for i := range n.children {
			if err := r.each(&n.children[i], use); err != nil {
				return err
			}
		}
		return nil
	})
}

// before counts the events before k, by series.
func (r *reader) before(k Key) ([]uint64, error) {
	n := make([]uint64, len(r.series))
	for _, root := range r.trees {
		if err := r.addBefore(n, root, entry{Key: k}); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// addBefore counts the events below c that are before k, by series, and adds the counts to n.
func (r *pages) addBefore(n []uint64, c *child, k entry) error {
	for {
		at, err := r.node(c)
		if err != nil {
			return err
		}
		if at.children == nil {
			for _, e := range at.entries {
				if e.compare(&k) >= 0 {
					break
				}
				n[e.series]++
			}
			return nil
		}
		// Find the last child that begins before k, or else the first child. All events of the children before it are before
		// k, and no events of the children after it are. So only this child has to be read.
		i := max(0, sort.Search(len(at.children), func(i int) bool { return at.children[i].first.compare(&k) >= 0 })-1)
		for _, c := range at.children[:i] {
			for _, s := range c.counts {
				n[s.series] += s.n
			}
		}
		c = &at.children[i]
	}
}

// sum adds up the counts of the series in members.
func sum(n []uint64, members []bool) (total uint64) {
	for id, n := range n {
		if members == nil || members[id] {
			total += n
		}
	}
	return total
}

// counts reports whether the trees of times count a name of an overflow series: then no run has it.
func (r *reader) counts(overflow uint32, name string) bool {
	if r.counted == nil {
		r.counted = make(map[string]bool, len(r.series))
		for _, series := range r.series {
			r.counted[series] = true
		}
	}
	series := r.series[overflow]
	tag, _ := codec.SplitSeries(series)
	return r.counted[string(codec.AppendSeries(nil, store.TagID(tag), name, codec.IsBot(series)))]
}

// last returns the key of the last event below c.
func (r *pages) last(c *child) (last entry, err error) {
	for {
		n, err := r.node(c)
		if err != nil {
			return last, err
		}
		if n.children == nil {
			return n.entries[len(n.entries)-1], nil
		}
		c = &n.children[len(n.children)-1]
	}
}

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
