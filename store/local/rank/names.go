package rank

import (
	"context"
	"maps"
	"slices"
	"sort"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/codec"
)

// Events of overflow series are in the counted trees like all others, but there without their names. A merchant's stored tree of names
// has them once more, in the order of names, and events of the same name in the order of Key. So it counts the events of any name
// within any time range, and finds the n-th of them. All names within a time range are not a part of the tree: for a page that is
// sorted by name, the whole tree of names is read (namesInRange), 0.15 s for a million events.
//
// Those in memory are in sorted runs, by series. A run never changes. So a run may be read after Index.mu was unlocked.

// isOverflow reports whether a series is the overflow series of a tag.
func isOverflow(series string) bool {
	tag, name := codec.SplitSeries(series)
	return tag != "" && name == ""
}

// addRuns adds events to runs. The goal: each run of a series is more than twice as large as the next one. So there are few, and no
// event is copied often.
func addRuns(all map[uint32][][]named, events []named) map[uint32][][]named {
	all = maps.Clone(all)
	if all == nil {
		all = map[uint32][][]named{}
	}
	slices.SortFunc(events, byName)
	bySeries := map[uint32][]named{}
	for _, e := range events {
		bySeries[e.series] = append(bySeries[e.series], e)
	}
	for series, run := range bySeries {
		runs := all[series]
		for len(runs) > 0 && len(runs[len(runs)-1]) <= 2*len(run) {
			run = mergeRuns(runs[len(runs)-1], run)
			runs = runs[:len(runs)-1]
		}
		all[series] = append(slices.Clip(runs), run)
	}
	return all
}

func mergeRuns(a, b []named) []named {
	merged := make([]named, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if byName(a[0], b[0]) > 0 {
			a, b = b, a
		}
		merged, a = append(merged, a[0]), a[1:]
	}
	return append(append(merged, a...), b...)
}

// part returns the events of a sorted run from one on, and before another.
func part(run []named, from, to named) []named {
	i, _ := slices.BinarySearchFunc(run, from, byName)
	n, _ := slices.BinarySearchFunc(run[i:], to, byName)
	return run[i : i+n]
}

// namesInRange are the events of a stored tree of names that are of some series and within a time range, in the order of names. It is a
// source. It knows how many there are before each of its marks, so each call reads the events between two marks.
type namesInRange struct {
	*pages[named]
	root    *child[named]
	members []bool
	lo, hi  Key
	marks   []nameMark
	few     []named // the events, while they are no more than eventsPerMark
	n       int
}

type nameMark struct {
	event  named
	before int
}

// eventsPerMark is how many events of the tree are between two marks.
const eventsPerMark = 8 * leafEntries

// readRange reads the whole tree.
func readRange(p *pages[named], root *child[named], members []bool, lo, hi Key) (*namesInRange, error) {
	s := &namesInRange{pages: p, root: root, members: members, lo: lo, hi: hi}
	n := 0
	_, err := p.each(root, named{}, func(e *named) bool {
		if n%eventsPerMark == 0 {
			s.marks = append(s.marks, nameMark{*e, s.n})
		}
		n++
		if s.selects(e) {
			if s.n++; s.n <= eventsPerMark {
				s.few = append(s.few, *e)
			}
		}
		return true
	})
	return s, err
}

func (s *namesInRange) selects(e *named) bool {
	return s.members[e.series] && e.Key.compare(s.lo) >= 0 && e.Key.compare(s.hi) < 0
}

func (s *namesInRange) size() int { return s.n }

func (s *namesInRange) below(e *named) (int, error) {
	if s.n <= eventsPerMark {
		return (&sliceSource{s.few, byName}).below(e)
	}
	mark := s.marks[max(0, sort.Search(len(s.marks), func(i int) bool { return s.marks[i].event.compare(*e) > 0 })-1)]
	n := mark.before
	_, err := s.each(s.root, mark.event, func(at *named) bool {
		if at.compare(*e) >= 0 {
			return false
		}
		if s.selects(at) {
			n++
		}
		return true
	})
	return n, err
}

func (s *namesInRange) collect(out []named, from, n int) ([]named, error) {
	if s.n <= eventsPerMark {
		return (&sliceSource{s.few, byName}).collect(out, from, n)
	}
	mark := s.marks[max(0, sort.Search(len(s.marks), func(i int) bool { return s.marks[i].before > from })-1)]
	skip := from - mark.before
	_, err := s.each(s.root, mark.event, func(e *named) bool {
		switch {
		case n == 0:
			return false
		case !s.selects(e):
		case skip > 0:
			skip--
		default:
			out = append(out, *e)
			n--
		}
		return true
	})
	return out, err
}

// namesWithin reads the names within a selection's time range. It needs no lock: no events wait for it.
func (x *Index) namesWithin(ctx context.Context, m codec.MerchantKey, s *Selection) (found *namesInRange, err error) {
	err = view(x.db, func(tx *bolt.Tx) error {
		t, err := loadTree(tx, m)
		if err != nil || t.names.isEmpty() {
			return err
		}
		found, err = readRange(newPages(ctx, tx, m, &nodeArena[named]{}), &t.names, s.overflowOf(t.series), s.lo, s.hi)
		return err
	})
	return found, err
}

// overflowOf returns the members (see reader) that are overflow series with events that may be selected.
func (s *Selection) overflowOf(series []string) []bool {
	members := make([]bool, len(series))
	for id, of := range series {
		_, ok := s.section(of)
		members[id] = ok && isOverflow(of)
	}
	return members
}

func newPages[E event[E]](ctx context.Context, tx *bolt.Tx, m codec.MerchantKey, arena *nodeArena[E]) *pages[E] {
	return &pages[E]{ctx: ctx, m: m, nodes: tx.Bucket(bucketNodes), loaded: map[uint64]*node[E]{}, arena: arena}
}
