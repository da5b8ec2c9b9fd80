package local

import (
	"runtime/debug"
	"slices"
	"sort"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
)

// reader walks one merchant's trees, as of one moment.
type reader struct {
	m      merchantKey
	series []string         // by number
	trees  []*child         // their roots: of the stored tree and of those in memory, without empty ones
	nodes  *bolt.Bucket     // the stored ones
	seen   map[uint64]*node // of these, those that were read
	arena  *nodeArena       // their memory
}

// view calls read with the merchant's trees; not at all when the merchant has no events. The nodes that
// it loads are valid until read returns, and applying waits until then.
func (x *index) view(m merchantKey, read func(r *reader) error) error {
	x.mu.RLock()
	defer x.mu.RUnlock()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // where the file was cut short, one request fails, not all
	return x.db.View(func(tx *bolt.Tx) error {
		t, err := loadTree(tx, m)
		if err != nil {
			return err
		}
		arena := x.arenas.Get().(*nodeArena)
		defer arena.free(&x.arenas)
		r := &reader{m: m, series: t.series, nodes: tx.Bucket(bucketNodes), seen: map[uint64]*node{}, arena: arena}
		roots := []*child{&t.root}
		if recent := x.recent[m]; recent != nil {
			r.series = recent.series.names()
			if t.covered == recent.covered { // else the merge is done, whatever the index knows of it
				roots = append(roots, &recent.frozen)
			}
			roots = append(roots, &recent.active)
		}
		for _, root := range roots {
			if !root.isEmpty() {
				r.trees = append(r.trees, root)
			}
		}
		if len(r.trees) == 0 {
			return nil
		}
		return read(r)
	})
}

func (r *reader) node(c *child) (*node, error) {
	if c.node != nil {
		return c.node, nil
	}
	if n, ok := r.seen[c.id]; ok {
		return n, nil
	}
	n, err := loadNode(r.nodes, r.m, c.id, r.arena)
	r.seen[c.id] = n
	return n, err
}

// page counts the selected events and finds the entries of the page. counted is false when that
// cannot be told from the counts alone, because events of the other series are in the range.
func (r *reader) page(s *selection) (total uint64, page []entry, counted bool, err error) {
	low, err := r.before(s.lo)
	if err != nil {
		return 0, nil, false, err
	}
	high, err := r.before(s.hi)
	if err != nil {
		return 0, nil, false, err
	}
	groups, doubtful := r.groups(s)
	for id, is := range doubtful {
		if is && high[id] > low[id] {
			return 0, nil, false, nil
		}
	}
	sizes := map[string]uint64{}
	for g, members := range groups {
		for id, member := range members {
			if member {
				sizes[g] += high[id] - low[id]
			}
		}
	}
	total, stretches := s.stretches(sizes)
	for _, run := range stretches {
		members := groups[run.group]
		var earlier uint64
		for id, member := range members {
			if member {
				earlier += low[id]
			}
		}
		start := len(page)
		if page, err = r.slice(page, members, earlier+run.from, earlier+run.to); err != nil {
			return 0, nil, false, err
		}
		if s.newestFirst() {
			slices.Reverse(page[start:])
		}
	}
	return total, page, true, nil
}

// groups returns, for each group of the selection, which series are in it, and which series are
// doubtful: other series of which it takes some events, but not all or not all in one group.
func (r *reader) groups(s *selection) (groups map[string][]bool, doubtful []bool) {
	groups = map[string][]bool{}
	doubtful = make([]bool, len(r.series))
	known := map[store.TagID]int{} // how many of the selected names are series of the tag
	for id, series := range r.series {
		group, ok := s.takes(series)
		if !ok {
			continue
		}
		tag, name := splitSeries([]byte(series))
		if name == "" && (s.names != nil || s.SortBy == store.ByName) {
			doubtful[id] = true
			continue
		}
		known[tag]++
		if groups[group] == nil {
			groups[group] = make([]bool, len(r.series))
		}
		groups[group][id] = true
	}
	for id, series := range r.series {
		// A name that is a series of its own is never in the tag's other series.
		if tag, _ := splitSeries([]byte(series)); s.names != nil && known[tag] == len(s.names) {
			doubtful[id] = false
		}
	}
	return groups, doubtful
}

// before counts the events before k, by series.
func (r *reader) before(k entryKey) ([]uint64, error) {
	n := make([]uint64, len(r.series))
	for _, root := range r.trees {
		if err := r.addBefore(n, root, k); err != nil {
			return nil, err
		}
	}
	return n, nil
}

// addBefore adds the events below c that are before k to n.
func (r *reader) addBefore(n []uint64, c *child, k entryKey) error {
	for {
		at, err := r.node(c)
		if err != nil {
			return err
		}
		if at.children == nil {
			for _, e := range at.entries {
				if e.compare(k) >= 0 {
					break
				}
				n[e.series]++
			}
			return nil
		}
		// The last child that begins before k may hold events on both sides of it.
		i := max(0, sort.Search(len(at.children), func(i int) bool { return at.children[i].first.compare(k) >= 0 })-1)
		for _, c := range at.children[:i] {
			for _, s := range c.counts {
				n[s.series] += s.n
			}
		}
		c = &at.children[i]
	}
}
