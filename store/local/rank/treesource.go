package rank

import (
	"fmt"
	"sort"

	"mtagd/store/local/codec"
)

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
