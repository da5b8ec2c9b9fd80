package local

import (
	"fmt"
	"math"
	"slices"
)

// A page is a run of ranks: the from-th to the to-th event of some series, in the order of time.

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
