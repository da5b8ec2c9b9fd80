package rank

import (
	"context"
	"sort"

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

// node returns a child's node. When the query's context has ended, node returns its error instead of loading.
func (r *pages) node(c *child) (*node, error) {
	if c.node != nil {
		return c.node, nil
	}
	if n, ok := r.loaded[c.id]; ok {
		return n, nil
	}
	if err := r.ctx.Err(); err != nil {
		return nil, err
	}
	r.loads++
	n, err := loadNode(r.nodes, r.m, c.id, r.arena)
	if err != nil {
		return nil, err
	}
	r.loaded[c.id] = n
	return n, nil
}

// each calls use with the events below c, in their order. It keeps no nodes in memory.
func (r *pages) each(c *child, use func(e *entry)) error {
	n := c.node
	if n == nil {
		if err := r.ctx.Err(); err != nil {
			return err
		}
		r.loads++
		defer r.arena.truncate(r.arena.size())
		var err error
		if n, err = loadNode(r.nodes, r.m, c.id, r.arena); err != nil {
			return err
		}
	}
	for i := range n.entries {
		use(&n.entries[i])
	}
	for i := range n.children {
		if err := r.each(&n.children[i], use); err != nil {
			return err
		}
	}
	return nil
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
