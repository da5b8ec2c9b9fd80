package rank

import (
	"fmt"
	"math"
	"slices"

	"mtagd/store/local/codec"
)

// appendRun appends the events with from ≤ rank < to, in the order of time. Ranks are among the events of the series in
// members (see reader).
func (r *reader) appendRun(out []entry, members []bool, from, to uint64) ([]entry, error) {
	disjoint, err := r.treesAreDisjoint()
	if err != nil {
		return nil, err
	}
	if disjoint {
		w := walker{reader: r, members: members, skip: from, left: to - from, out: out}
		for _, root := range r.trees {
			if err := w.walk(root); err != nil {
				return nil, err
			}
		}
		if w.left > 0 {
			return nil, r.corruptCounts()
		}
		return w.out, nil
	}
	return r.appendOverlapping(out, members, from, to)
}

// treesAreDisjoint reports whether each tree begins after the end of the previous one. That is so while events arrive in
// the order of time.
func (r *reader) treesAreDisjoint() (bool, error) {
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

// appendOverlapping is appendRun for trees that overlap in time:
//
//  1. Find the key of the first event of the run.
//  2. From that key on, take as many events from each tree as the run has.
//  3. Sort them, and cut off those after the run.
func (r *reader) appendOverlapping(out []entry, members []bool, from, to uint64) ([]entry, error) {
	k, err := r.keyAt(members, from)
	if err != nil {
		return nil, err
	}
	start := len(out)
	for _, root := range r.trees {
		earlier := make([]uint64, len(r.series))
		if err := r.addBefore(earlier, root, k); err != nil {
			return nil, err
		}
		w := walker{reader: r, members: members, skip: sum(earlier, members), left: to - from, out: out}
		if err := w.walk(root); err != nil {
			return nil, err
		}
		out = w.out
	}
	found := out[start:]
	if uint64(len(found)) < to-from {
		return nil, r.corruptCounts()
	}
	slices.SortFunc(found, func(a, b entry) int { return a.compare(b.Key) })
	return out[:start+int(to-from)], nil
}

// keyAt returns the key of the event with this rank among the events of members. It is the greatest key that has at most
// rank events before it. keyAt finds its time, then its seq, then its index, each by binary search.
func (r *reader) keyAt(members []bool, rank uint64) (k Key, err error) {
	atMost := func(k Key) bool {
		if err != nil {
			return false
		}
		var earlier []uint64
		earlier, err = r.before(k)
		return err == nil && sum(earlier, members) <= rank
	}
	first := r.trees[0].first.Time
	for _, root := range r.trees {
		first = min(first, root.first.Time)
	}
	k.Time = first + int64(greatest(math.MaxInt64, func(d uint64) bool {
		t := first + int64(d)
		return t >= first && atMost(Key{Time: t})
	}))
	k.Seq = greatest(math.MaxUint64, func(seq uint64) bool {
		return atMost(Key{k.Time, codec.Position{Seq: seq}})
	})
	k.Index = uint16(greatest(math.MaxUint16, func(i uint64) bool {
		return atMost(Key{k.Time, codec.Position{Seq: k.Seq, Index: uint16(i)}})
	}))
	return k, err
}

// greatest returns the greatest number up to limit for which ok returns true. If ok is true for a number, it must be true
// for all smaller numbers; it must be true for 0.
func greatest(limit uint64, ok func(uint64) bool) (n uint64) {
	for bit := uint64(1) << 63; bit > 0; bit >>= 1 {
		if next := n | bit; next <= limit && ok(next) {
			n = next
		}
	}
	return n
}

func (r *reader) corruptCounts() error {
	return fmt.Errorf("%w: index counts of merchant %x", codec.ErrCorrupt, r.m)
}

// walker collects the events of members from one tree after the other.
type walker struct {
	*reader
	members    []bool
	skip, left uint64 // how many of the events to skip, and then to collect
	out        []entry
}

func (w *walker) walk(c *child) error {
	n, err := w.node(c)
	if err != nil {
		return err
	}
	for _, e := range n.entries {
		switch {
		case !w.members[e.series]:
		case w.skip > 0:
			w.skip--
		case w.left > 0:
			w.left--
			w.out = append(w.out, e)
		}
	}
	for i := range n.children {
		if w.left == 0 {
			return nil
		}
		below := &n.children[i]
		matching := below.counts.of(w.members)
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
