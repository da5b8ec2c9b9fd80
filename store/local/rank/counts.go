package rank

import (
	"context"
	"math"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
)

// SeriesCounts are the numbers of a series' events by time.
type SeriesCounts struct {
	Tag store.TagID

	// Name is empty for the events of a tag's overflow series, which have many names. When the selection has a names filter,
	// there is none of these: then the events of overflow series are counted by name, too.
	Name string

	Counts []uint64 // by bucket
}

// Counts counts the selected events by series and by bucket: bucket i has the events with bounds[i] ≤ time < bounds[i+1] (µs
// since 1970). The bounds must be sorted. Series without events in any bucket are left out. The counts are as of one moment.
//
// The cost depends on the numbers of bounds, series, and names in the filter, but not on that of events. Besides the result it
// needs memory for one node of each level of the tree. Events are applied meanwhile, except while it counts those in memory.
func (x *Index) Counts(ctx context.Context, m codec.MerchantKey, s *Selection, bounds []int64) (counts []SeriesCounts, err error) {
	if len(bounds) < 2 {
		return nil, nil
	}
	clamped := make([]int64, len(bounds))
	for i, b := range bounds {
		clamped[i] = min(max(b, s.lo.Time), s.hi.Time)
	}
	err = boltfile.CatchDamage("index.db", func() (err error) {
		counts, err = x.counts(ctx, m, s, clamped)
		return err
	})
	return counts, err
}

func (x *Index) counts(ctx context.Context, m codec.MerchantKey, s *Selection, bounds []int64) ([]SeriesCounts, error) {
	x.mu.RLock()
	unlock := x.mu.RUnlock
	defer func() { unlock() }()
	tx, err := x.db.Begin(false)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }() // fails only when the transaction has ended already
	r, err := x.newReader(ctx, tx, m, nil)
	if err != nil {
		return nil, err
	}
	c := bucketCounter{reader: r, bounds: bounds, before: make([]uint64, len(bounds)*len(r.series))}
	for i := len(r.trees) - 1; i >= 0; i-- { // the stored tree last
		root := r.trees[i]
		if root.node == nil { // all others are in memory, and counted
			unlock()
			unlock = func() {}
		}
		if err := c.addTree(root); err != nil {
			return nil, err
		}
	}
	var all []SeriesCounts
	for id, series := range r.series {
		tag, name := codec.SplitSeries(series)
		if _, ok := s.section(series); !ok || id == 0 || name == "" && s.names != nil {
			continue
		}
		all = c.append(all, SeriesCounts{Tag: store.TagID(tag), Name: name}, func(bound int) uint64 {
			return c.before[bound*len(r.series)+id]
		})
	}
	if s.names == nil {
		return all, nil
	}
	return c.appendOverflow(all, s)
}

// bucketCounter counts events before each of several times.
type bucketCounter struct {
	*reader
	bounds []int64
	before []uint64 // how many events are before each bound, by bound and series

	next   int          // the next bound of the tree that is being counted
	passed []uint64     // how many of its events are before the current place, by series
	arenas []*nodeArena // the memory of decoded nodes, by depth
}

// append appends the counts of a series, unless all are 0. before returns how many of its events are before a bound.
func (c *bucketCounter) append(all []SeriesCounts, s SeriesCounts, before func(bound int) uint64) []SeriesCounts {
	last := len(c.bounds) - 1
	if before(0) == before(last) {
		return all
	}
	s.Counts = make([]uint64, last)
	for i := range s.Counts {
		s.Counts[i] = before(i+1) - before(i)
	}
	return append(all, s)
}

// addTree counts the events of a tree. It walks the tree once, and goes only into nodes that have a bound between their
// events.
func (c *bucketCounter) addTree(root *child) error {
	c.next, c.passed = 0, make([]uint64, len(c.series))
	c.reach(root.first)
	if err := c.walk(root, Key{Time: math.MaxInt64}, 0); err != nil {
		return err
	}
	c.reach(Key{Time: math.MaxInt64, Position: codec.Position{Seq: math.MaxUint64, Index: math.MaxUint16}})
	return nil
}

// reach notes how many events are before each of the next bounds that are not after k.
func (c *bucketCounter) reach(k Key) {
	for c.next < len(c.bounds) && (Key{Time: c.bounds[c.next]}).compare(k) <= 0 {
		before := c.before[c.next*len(c.series):][:len(c.series)]
		for series, n := range c.passed {
			before[series] += n
		}
		c.next++
	}
}

// walk counts the events below a child, which are all less than end.
func (c *bucketCounter) walk(at *child, end Key, depth int) error {
	if c.next == len(c.bounds) || (Key{Time: c.bounds[c.next]}).compare(end) >= 0 {
		for _, s := range at.counts {
			c.passed[s.series] += s.n
		}
		return nil
	}
	n, err := c.node(at, depth)
	if err != nil {
		return err
	}
	for _, e := range n.entries {
		c.reach(e.Key)
		c.passed[e.series]++
	}
	for i := range n.children {
		c.reach(n.children[i].first)
		next := end
		if i+1 < len(n.children) {
			next = n.children[i+1].first
		}
		if err := c.walk(&n.children[i], next, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// node returns a child's node. It is valid until the next one of this depth is read: all nodes together may take much memory.
func (c *bucketCounter) node(at *child, depth int) (*node, error) {
	if at.node != nil {
		return at.node, nil
	}
	if err := c.ctx.Err(); err != nil {
		return nil, err
	}
	if depth == len(c.arenas) {
		c.arenas = append(c.arenas, &nodeArena{})
	}
	c.arenas[depth].reset()
	return loadNode(c.nodes, c.m, at.id, c.arenas[depth])
}

// appendOverflow appends the counts of the selection's names in overflow series.
func (c *bucketCounter) appendOverflow(all []SeriesCounts, s *Selection) ([]SeriesCounts, error) {
	segments, err := c.openSegments(func(segment *segment) bool { // each event is in one segment of only its tag
		if segment.tag == 0 {
			return false
		}
		_, ok := s.section(c.series[segment.tag])
		return ok
	})
	if err != nil {
		return nil, err
	}
	byTag := map[uint32][]*segmentReader{}
	for _, segment := range segments {
		byTag[segment.tag] = append(byTag[segment.tag], segment)
	}
	for tag, segments := range byTag {
		id, _ := codec.SplitSeries(c.series[tag])
		for name := range s.names {
			before := make([]uint64, len(c.bounds))
			for _, segment := range segments {
				if err := segment.addBefore(before, name, c.bounds); err != nil {
					return nil, err
				}
			}
			all = c.append(all, SeriesCounts{Tag: store.TagID(id), Name: name}, func(bound int) uint64 { return before[bound] })
		}
	}
	return all, nil
}

// addBefore adds to n how many events of a name are before each bound, from the first bound on.
func (s *segmentReader) addBefore(n []uint64, name string, bounds []int64) error {
	from, err := s.rank(&named{name, entry{Key: s.from(Key{Time: bounds[0]})}})
	if err != nil {
		return err
	}
	for i, rank := 0, from; i < len(bounds); i++ {
		at, err := s.rankFrom(rank, &named{name, entry{Key: Key{Time: bounds[i]}}})
		if err != nil {
			return err
		}
		rank = max(rank, at) // removed events are before from
		n[i] += uint64(rank - from)
	}
	return nil
}
