package rank

import (
	"math/bits"
	"slices"

	"mtagd/store/local/codec"
)

// The tree of times has the events of overflow series, too, but not their names. So these events are also in runs, in the
// order of their names. A run can count its events of a name within a time range, and find the n-th of them.
//
// Anybody can make up names, so their cost is bounded. A stored run is written from its first event to its last, and never
// grows. A merge writes the new events to a run. It includes the last stored run if that is at most twice as large, then
// the one before, and so on. So an event is written about once for each doubling of the number of events, up to maxRun,
// whatever its name is. There are few runs: each is more than twice as large as the next one, except the runs with about
// maxRun events, which are N/maxRun to 3N/maxRun.
//
// Each run knows its first and last Key. Events come nearly in the order of time, so a time range begins or ends within few
// runs. For a page by name, these are read whole (runInRange); all others count what is in the range.

// run is some of a merchant's events of overflow series: a counted tree in the order of names.
type run struct {
	root     child
	from, to Key // no event is before from, or after to
}

// maxRun is how many events a run has at most, unless a single merge brings more. It bounds the memory of a merge, and how
// much is read of a run in which a time range begins or ends.
const maxRun = 256 << 10

// isOverflow reports whether a series is the overflow series of a tag.
func isOverflow(series string) bool {
	tag, name := codec.SplitSeries(series)
	return tag != "" && name == ""
}

// add adds an event to a run in memory.
func (r *run) add(e entry) error {
	if r.root.isEmpty() {
		r.from, r.to = e.Key, e.Key
	}
	r.widen(e.Key, e.Key)
	return r.root.insertAtRoot(e, nil)
}

// widen extends the bounds of the run to include others.
func (r *run) widen(from, to Key) {
	if from.compare(r.from) < 0 {
		r.from = from
	}
	if to.compare(r.to) > 0 {
		r.to = to
	}
}

// overlaps reports whether the run may have events with lo ≤ key < hi, and within whether it has no others.
func (r *run) overlaps(lo, hi Key) bool { return r.to.compare(lo) >= 0 && r.from.compare(hi) < 0 }
func (r *run) within(lo, hi Key) bool   { return r.from.compare(lo) >= 0 && r.to.compare(hi) < 0 }

// addRun writes the events of a run in memory as a new one, with those of the last stored runs that it replaces.
func (t *treeEdit) addRun(recent *run) error {
	if recent.root.isEmpty() {
		return nil
	}
	added := run{from: recent.from, to: recent.to}
	var events []entry
	for _, leaf := range recent.root.leaves() {
		events = append(events, leaf.node.entries...)
	}
	for len(t.runs) > 0 {
		last := &t.runs[len(t.runs)-1]
		if n := int(last.root.counts.of(nil)); n > 2*len(events) || n+len(events) > t.x.maxRun {
			break
		}
		older, err := t.eventsOf(last)
		if err != nil {
			return err
		}
		events = mergeSlices(older, events)
		added.widen(last.from, last.to)
		if err := t.drop(&last.root); err != nil {
			return err
		}
		t.runs = t.runs[:len(t.runs)-1]
	}
	t.runs = append(slices.Clip(t.runs), added)
	root := &t.runs[len(t.runs)-1].root
	for some := range slices.Chunk(events, leafEntries) {
		for _, e := range some {
			if err := root.insertAtRoot(e, t.load); err != nil {
				return err
			}
		}
		if err := t.spend(len(some)); err != nil {
			return err
		}
	}
	return nil
}

// eventsOf reads all events of a stored run.
func (t *treeEdit) eventsOf(r *run) (events []entry, err error) {
	err = newPages(t.ctx, t.tx, t.m, &nodeArena{}).each(&r.root, func(e *entry) { events = append(events, *e) })
	return events, err
}

// removeNamed removes the events for whose keys gone returns true from the runs that concerns selects. Others are not read.
func (t *treeEdit) removeNamed(concerns func(r *run) bool, gone func(k Key) bool) error {
	for i := range t.runs {
		r := &t.runs[i]
		if r.root.isEmpty() || !concerns(r) {
			continue
		}
		events, err := t.eventsOf(r)
		if err != nil {
			return err
		}
		r.from, r.to = r.to, r.from // until widen
		events = slices.DeleteFunc(events, func(e entry) bool {
			stays := !gone(e.Key)
			if stays {
				r.widen(e.Key, e.Key)
			}
			return stays
		})
		if _, err := t.removeAll(&r.root, events); err != nil {
			return err
		}
	}
	t.runs = slices.DeleteFunc(t.runs, func(r run) bool { return r.root.isEmpty() })
	return nil
}

// mergeSlices merges two slices that are sorted by name.
func mergeSlices(a, b []entry) []entry {
	merged := make([]entry, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		if byName(a[0], b[0]) > 0 {
			a, b = b, a
		}
		merged, a = append(merged, a[0]), a[1:]
	}
	return append(append(merged, a...), b...)
}

// runInRange is the events of a run that are of some series and within a time range, in the order of names. It is a source.
type runInRange struct {
	all      source
	selected []uint64 // bit n says whether the n-th event of the run is one of them
	n        int
}

// readRange reads a whole run.
func (q *pageQuery) readRange(r *run, members []bool) (*runInRange, error) {
	s := &runInRange{all: q.runSource(r, nil)}
	at := 0
	err := q.pages.each(&r.root, func(e *entry) {
		if at%64 == 0 {
			s.selected = append(s.selected, 0)
		}
		if members[e.series] && e.Key.compare(q.lo) >= 0 && e.Key.compare(q.hi) < 0 {
			s.selected[at/64] |= 1 << (at % 64)
			s.n++
		}
		at++
	})
	return s, err
}

func (s *runInRange) size() int { return s.n }

func (s *runInRange) below(e *entry) (n int, err error) {
	at, err := s.all.below(e)
	for _, word := range s.selected[:at/64] {
		n += bits.OnesCount64(word)
	}
	if at%64 > 0 {
		n += bits.OnesCount64(s.selected[at/64] << (64 - at%64))
	}
	return n, err
}

func (s *runInRange) collect(out []entry, from, n int) (_ []entry, err error) {
	for i, word := range s.selected {
		if in := bits.OnesCount64(word); in <= from {
			from -= in
			continue
		}
		for ; word != 0 && n > 0; word &= word - 1 {
			if from > 0 {
				from--
				continue
			}
			if out, err = s.all.collect(out, 64*i+bits.TrailingZeros64(word), 1); err != nil {
				return nil, err
			}
			n--
		}
	}
	return out, nil
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
