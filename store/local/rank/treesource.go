package rank

import (
	"fmt"
	"math"
	"sort"

	"mtagd/store/local/codec"
)

// treeSource is the events of counted series of one tree, within a time range, section by section.
type treeSource struct {
	*reader
	root     *child
	sections []treeSection // sorted by name
}

// treeSection is the selected events of some series. They all have the same name, or the sources are in the order of keys.
type treeSection struct {
	name       string
	members    []bool // see reader
	earlier    uint64 // number of the members' events before the time range
	start, end int    // the section's range of indexes in the source
}

func (s *treeSource) size() int { return s.sections[len(s.sections)-1].end }

func (s *treeSource) below(e *named) (int, error) {
	i := 0
	if s.sections[0].name != "" {
		i = sort.Search(len(s.sections), func(i int) bool { return s.sections[i].name >= e.name })
		if i == len(s.sections) {
			return s.size(), nil
		}
	}
	section := &s.sections[i]
	if section.name != "" && section.name != e.name || e.Time == math.MinInt64 {
		return section.start, nil
	}
	n := make([]uint64, len(s.series))
	if err := s.addBefore(n, s.root, e.Key); err != nil {
		return 0, err
	}
	return min(section.start+int(max(sum(n, section.members), section.earlier)-section.earlier), section.end), nil
}

func (s *treeSource) collect(out []named, from, n int) ([]named, error) {
	for _, section := range s.sections {
		if n == 0 || section.end <= from {
			continue
		}
		take := min(n, section.end-from)
		w := walker{s.reader, section, uint64(from-section.start) + section.earlier, take, out}
		if err := w.walk(s.root); err != nil {
			return nil, err
		}
		if w.left > 0 {
			return nil, s.corruptCounts()
		}
		out, from, n = w.out, from+take, n-take
	}
	return out, nil
}

func (r *reader) corruptCounts() error {
	return fmt.Errorf("%w: index counts of merchant %x", codec.ErrCorrupt, r.m)
}

// walker collects events of a section from its tree.
type walker struct {
	*reader
	treeSection
	skip uint64 // number of events to skip
	left int    // number of events to collect after that
	out  []named
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
			w.out = append(w.out, named{w.name, e})
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
