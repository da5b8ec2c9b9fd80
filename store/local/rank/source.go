package rank

import (
	"fmt"
	"sort"

	"mtagd/store/local/codec"
)

// The events of a page may be spread over several sources: the trees, and the events in memory. Each source has some of the
// events that a query selects, in the order that all sources have in common.
type source interface {
	// size returns the number of events.
	size() int
	// below counts the events that are less than e.
	below(e *entry) (int, error)
	// collect appends up to n events, from the place from on.
	collect(out []entry, from, n int) ([]entry, error)
}

// byKey and byName are the orders of sources. The events of a name are also ordered byKey.
func byKey(a, b entry) int  { return a.Key.compare(b.Key) }
func byName(a, b entry) int { return a.compare(&b) }

// sources are several sources in one order. They have no event in common.
type sources struct {
	all     []source
	compare func(a, b entry) int
}

// add adds a source, if it has events.
func (s *sources) add(one source) {
	if one.size() > 0 {
		s.all = append(s.all, one)
	}
}

func (s sources) size() (n int) {
	for _, one := range s.all {
		n += one.size()
	}
	return n
}

// below counts the events of all sources that are less than e.
func (s sources) below(e *entry) (n int, err error) {
	for _, one := range s.all {
		below, err := one.below(e)
		if err != nil {
			return 0, err
		}
		n += below
	}
	return n, nil
}

// fewEvents is how many candidates for the first event of a run collect leaves, before it collects all of them.
const fewEvents = 64

// collect returns the events with from ≤ rank < to, where ranks are among the events of all sources:
//
//  1. Narrow down where the run begins in each source, until few candidates remain.
//  2. From there on, merge the sources.
func (s sources) collect(from, to int) ([]entry, error) {
	if from >= to {
		return nil, nil
	}
	if len(s.all) == 1 {
		return s.all[0].collect(nil, from, to-from)
	}
	starts, err := s.narrow(from)
	if err != nil {
		return nil, err
	}
	skip := from
	for _, start := range starts {
		skip -= start
	}
	found, err := s.take(starts, skip+to-from)
	if err != nil {
		return nil, err
	}
	return found[skip:], nil
}

// take returns the next n events, in order, of sources that are read from these places on.
func (s sources) take(places []int, n int) (found []entry, err error) {
	blocks := make([][]entry, len(s.all)) // the next events of each source
	for len(found) < n {
		least := -1
		for i, one := range s.all {
			if len(blocks[i]) == 0 && places[i] < one.size() {
				if blocks[i], err = one.collect(nil, places[i], max(8, n/8)); err != nil {
					return nil, err
				}
				places[i] += len(blocks[i])
			}
			if len(blocks[i]) > 0 && (least < 0 || s.compare(blocks[i][0], blocks[least][0]) < 0) {
				least = i
			}
		}
		if least < 0 {
			return nil, errSelected
		}
		found, blocks[least] = append(found, blocks[least][0]), blocks[least][1:]
	}
	return found, nil
}

// narrow returns a place in each source such that all events before these places are among the first rank of all, and
// that few of the first rank are not before them. It halves the candidates with an event of the source that has most of
// them. Where events are spread evenly, it needs fewer steps: it guesses the place in that source, every other time.
func (s sources) narrow(rank int) (low []int, err error) {
	low, high := make([]int, len(s.all)), make([]int, len(s.all))
	for i, one := range s.all {
		high[i] = one.size()
	}
	counts := make([]int, len(s.all))
	for step := 0; ; step++ {
		widest, known, candidates := 0, 0, 0
		for i := range s.all {
			known += low[i]
			candidates += high[i] - low[i]
			if high[i]-low[i] > high[widest]-low[widest] {
				widest = i
			}
		}
		if candidates <= fewEvents || known == rank {
			return low, nil
		}
		width := high[widest] - low[widest]
		at := low[widest] + width/2
		if step%2 == 0 {
			at = low[widest] + min(width-1, int(float64(width)*float64(rank-known)/float64(candidates)))
		}
		pivot, err := s.all[widest].collect(nil, at, 1)
		if err != nil {
			return nil, err
		}
		total := 0
		for i, one := range s.all {
			if counts[i] = at; i != widest {
				if counts[i], err = one.below(&pivot[0]); err != nil {
					return nil, err
				}
				counts[i] = min(max(counts[i], low[i]), high[i])
			}
			total += counts[i]
		}
		if total >= rank {
			copy(high, counts)
		}
		if total <= rank {
			copy(low, counts)
		}
		if total < rank {
			low[widest]++ // the pivot is before the run too
		}
	}
}

// treeSource is events of one tree, section by section: those of counted series within a time range; or, of a run, all
// events, or those of some names within a time range.
type treeSource struct {
	*pages
	series   int
	root     *child
	byName   bool          // the sources are in the order of names
	sections []treeSection // sorted by name; none: there are no events
}

// treeSection is the selected events of some series. They all have this name; "": they have any, and the sources are in
// the order of keys, or the tree is in the order of names.
type treeSection struct {
	name       string
	members    []bool // see reader
	earlier    uint64 // number of the members' events before the time range
	start, end int    // the section's range of indexes in the source
}

// add adds a section of n events, unless n is 0.
func (s *treeSource) add(name string, members []bool, earlier, n uint64) {
	if n > 0 {
		s.sections = append(s.sections, treeSection{name, members, earlier, s.size(), s.size() + int(n)})
	}
}

func (s *treeSource) size() int {
	if len(s.sections) == 0 {
		return 0
	}
	return s.sections[len(s.sections)-1].end
}

func (s *treeSource) below(e *entry) (int, error) {
	section := &s.sections[0]
	if s.byName && section.name != "" {
		i := sort.Search(len(s.sections), func(i int) bool { return s.sections[i].name >= e.name })
		if i == len(s.sections) {
			return s.size(), nil
		}
		if section = &s.sections[i]; section.name != e.name {
			return section.start, nil
		}
	}
	of := *e
	switch {
	case s.root.first.name == "": // the tree of times
		of.name = ""
	case section.name != "":
		of.name = section.name
	}
	n := make([]uint64, s.series)
	if err := s.addBefore(n, s.root, of); err != nil {
		return 0, err
	}
	return min(section.start+int(max(sum(n, section.members), section.earlier)-section.earlier), section.end), nil
}

func (s *treeSource) collect(out []entry, from, n int) ([]entry, error) {
	for _, section := range s.sections {
		if n == 0 || section.end <= from {
			continue
		}
		take := min(n, section.end-from)
		w := walker{s.pages, section, uint64(from-section.start) + section.earlier, take, out}
		if err := w.walk(s.root); err != nil {
			return nil, err
		}
		if w.left > 0 {
			return nil, errSelected
		}
		out, from, n = w.out, from+take, n-take
	}
	return out, nil
}

// errSelected says that there are other events than the trees count.
var errSelected = fmt.Errorf("index.db: %w: counts of events", codec.ErrCorrupt)

// walker collects events of a section from its tree.
type walker struct {
	*pages
	treeSection
	skip uint64 // number of events to skip
	left int    // number of events to collect after that
	out  []entry
}

func (w *walker) walk(c *child) error {
	n, err := w.node(c)
	if err != nil {
		return err
	}
	for _, e := range n.entries {
		switch {
		case w.members != nil && !w.members[e.series]:
		case w.skip > 0:
			w.skip--
		case w.left > 0:
			w.left--
			if w.name != "" {
				e.name = w.name
			}
			w.out = append(w.out, e)
		}
	}
	for i := range n.children {
		if w.left == 0 {
			return nil
		}
		below := &n.children[i]
		if matching := below.counts.of(w.members); matching <= w.skip {
			w.skip -= matching
		} else if err := w.walk(below); err != nil {
			return err
		}
	}
	return nil
}
