package local

import (
	"fmt"
	"math"
	"slices"
	"sort"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
)

// reader walks one merchant's tree, as of one moment.
type reader struct {
	txn *badger.Txn
	m   merchantKey
	t   *tree
}

// view calls read with the merchant's tree; not at all when the merchant has no events. Applying
// waits until read returns.
func (x *index) view(m merchantKey, read func(r *reader) error) error {
	x.mu.RLock()
	defer x.mu.RUnlock()
	r := &reader{txn: x.db.NewTransactionAt(math.MaxUint64, false), m: m, t: x.trees[m]}
	defer r.txn.Discard()
	if r.t == nil {
		var err error
		if r.t, err = loadTree(r.txn, m); err != nil || r.t == nil {
			return err
		}
	}
	return read(r)
}

func (r *reader) node(c *child) (*node, error) {
	if c.node != nil {
		return c.node, nil
	}
	return loadNode(r.txn, r.m, c.id)
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
	groups := r.groups(s)
	if high[otherSeries] > low[otherSeries] && (s.filtered() || s.SortBy == store.ByName) {
		return 0, nil, false, nil
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

// groups returns, for each group of the selection, which series are in it.
func (r *reader) groups(s *selection) map[string][]bool {
	groups := map[string][]bool{}
	add := func(g string, id int) {
		if groups[g] == nil {
			groups[g] = make([]bool, len(r.t.series))
		}
		groups[g][id] = true
	}
	for id := otherSeries + 1; id < len(r.t.series); id++ {
		if g, ok := s.takes(r.t.series[id]); ok {
			add(g, id)
		}
	}
	if !s.filtered() && s.SortBy == store.ByTime {
		add("", otherSeries)
	}
	return groups
}

// before counts the events before k, by series.
func (r *reader) before(k entryKey) ([]uint64, error) {
	n := make([]uint64, len(r.t.series))
	c := &r.t.root
	for {
		at, err := r.node(c)
		if err != nil {
			return nil, err
		}
		if at.children == nil {
			for _, e := range at.entries {
				if e.compare(k) >= 0 {
					break
				}
				n[e.series]++
			}
			return n, nil
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
	w := slicer{reader: r, series: series, skip: from, want: to - from, out: out}
	if err := w.walk(&r.t.root); err != nil {
		return nil, err
	}
	if w.want > 0 {
		return nil, fmt.Errorf("%w: index counts of merchant %x", errCorrupt, r.m)
	}
	return w.out, nil
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
		var matching uint64
		for _, s := range below.counts {
			if w.series[s.series] {
				matching += s.n
			}
		}
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
