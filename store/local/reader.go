package local

import (
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
)

// reader walks one merchant's trees, as of one moment.
type reader struct {
	txn    *badger.Txn
	m      merchantKey
	series []string         // by number
	trees  []*child         // their roots: of the stored tree and of those in memory, without empty ones
	nodes  map[uint64]*node // stored nodes that were read
}

// view calls read with the merchant's trees; not at all when the merchant has no events. Applying
// waits until read returns.
func (x *index) view(m merchantKey, read func(r *reader) error) error {
	x.mu.RLock()
	defer x.mu.RUnlock()
	r := &reader{txn: x.db.NewTransactionAt(math.MaxUint64, false), m: m, nodes: map[uint64]*node{}}
	defer r.txn.Discard()
	var roots []*child
	if recent := x.recent[m]; recent != nil {
		r.series = recent.series.names()
		roots = []*child{&recent.stored.root, &recent.frozen, &recent.active}
	} else {
		t, err := loadTree(r.txn, m)
		if err != nil {
			return err
		}
		r.series = t.series
		roots = []*child{&t.root}
	}
	for _, root := range roots {
		if root.node != nil || root.id != 0 {
			r.trees = append(r.trees, root)
		}
	}
	if len(r.trees) == 0 {
		return nil
	}
	return read(r)
}

func (r *reader) node(c *child) (*node, error) {
	if c.node != nil {
		return c.node, nil
	}
	if n, ok := r.nodes[c.id]; ok {
		return n, nil
	}
	n, err := loadNode(r.txn, r.m, c.id)
	r.nodes[c.id] = n
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

// slice appends, in the order of time, the entries from the from-th to before the to-th of the
// events of some series.
func (r *reader) slice(out []entry, series []bool, from, to uint64) ([]entry, error) {
	follow, err := r.treesFollow()
	if err != nil {
		return nil, err
	}
	if follow {
		w := slicer{reader: r, series: series, skip: from, want: to - from, out: out}
		for _, root := range r.trees {
			if err := w.walk(root); err != nil {
				return nil, err
			}
		}
		if w.want > 0 {
			return nil, fmt.Errorf("%w: index counts of merchant %x", errCorrupt, r.m)
		}
		return w.out, nil
	}
	return r.sliceMixed(out, series, from, to)
}

// treesFollow reports whether each tree begins after the one before it has ended: so it is
// where events arrive in the order of time.
func (r *reader) treesFollow() (bool, error) {
	for i, root := range r.trees[1:] {
		earlier := make([]uint64, len(r.series))
		if err := r.addBefore(earlier, r.trees[i], root.first); err != nil {
			return false, err
		}
		if sum(earlier, nil) < r.trees[i].counts.of(nil) {
			return false, nil
		}
	}
	return true, nil
}

// sliceMixed is slice where the times of one tree fall between those of another: it finds the key of
// the from-th event, takes as many as are wanted from there in each tree, and puts these in order.
func (r *reader) sliceMixed(out []entry, series []bool, from, to uint64) ([]entry, error) {
	k, err := r.keyAt(series, from)
	if err != nil {
		return nil, err
	}
	start := len(out)
	for _, root := range r.trees {
		earlier := make([]uint64, len(r.series))
		if err := r.addBefore(earlier, root, k); err != nil {
			return nil, err
		}
		w := slicer{reader: r, series: series, skip: sum(earlier, series), want: to - from, out: out}
		if err := w.walk(root); err != nil {
			return nil, err
		}
		out = w.out
	}
	found := out[start:]
	if uint64(len(found)) < to-from {
		return nil, fmt.Errorf("%w: index counts of merchant %x", errCorrupt, r.m)
	}
	slices.SortFunc(found, func(a, b entry) int { return a.compare(b.entryKey) })
	return out[:start+int(to-from)], nil
}

// keyAt returns the greatest key with at most n events of some series before it: that of the n-th
// one, counted from 0. It narrows down the time, then the seq, then the index.
func (r *reader) keyAt(series []bool, n uint64) (k entryKey, err error) {
	atMost := func(k entryKey) bool {
		if err != nil {
			return false
		}
		var earlier []uint64
		earlier, err = r.before(k)
		return err == nil && sum(earlier, series) <= n
	}
	first := r.trees[0].first.time
	for _, root := range r.trees {
		first = min(first, root.first.time)
	}
	k.time = first + int64(greatest(math.MaxInt64, func(d uint64) bool {
		t := first + int64(d)
		return t >= first && atMost(entryKey{time: t})
	}))
	k.seq = greatest(math.MaxUint64, func(seq uint64) bool { return atMost(entryKey{k.time, position{seq, 0}}) })
	k.index = uint16(greatest(math.MaxUint16, func(i uint64) bool { return atMost(entryKey{k.time, position{k.seq, uint16(i)}}) }))
	return k, err
}

// greatest returns the greatest number up to limit for which ok holds; it holds for 0 and for all up to some
// number.
func greatest(limit uint64, ok func(uint64) bool) (n uint64) {
	for bit := uint64(1) << 63; bit > 0; bit >>= 1 {
		if next := n | bit; next <= limit && ok(next) {
			n = next
		}
	}
	return n
}

// sum adds up the events of some series; nil for all.
func sum(n []uint64, series []bool) (total uint64) {
	for id, n := range n {
		if series == nil || series[id] {
			total += n
		}
	}
	return total
}

type slicer struct {
	*reader
	series     []bool
	skip, want uint64
	out        []entry
}

func (w *slicer) walk(c *child) error {
	n, err := w.node(c)
	if err != nil {
		return err
	}
	for _, e := range n.entries {
		switch {
		case !w.series[e.series]:
		case w.skip > 0:
			w.skip--
		case w.want > 0:
			w.want--
			w.out = append(w.out, e)
		}
	}
	for i := range n.children {
		if w.want == 0 {
			return nil
		}
		below := &n.children[i]
		matching := below.counts.of(w.series)
		if matching <= w.skip {
			w.skip -= matching
			continue
		}
		if err := w.walk(below); err != nil {
			return err
		}
	}
	return nil
}
