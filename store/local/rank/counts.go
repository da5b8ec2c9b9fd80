package rank

// useCount gets how many events of a series are between a bound and the one before it. bound is the first one after the
// events; the number of bounds when none is.
type useCount func(bound int, series uint32, n uint64)

// bucketCounter counts the events of a tree by series, between each two neighbouring bounds. It walks the tree once, and
// enters only nodes with a bound between their events.
type bucketCounter struct {
	*pages
	bounds []entry // sorted
	use    useCount

	next    int      // the first bound after the current place
	passed  []uint64 // events between the bound before it and the current place, by series
	touched []uint32 // the series of which passed is not 0
}

// countBuckets counts the events of all trees between times (µs since 1970), and calls use only for counts above 0.
func (r *reader) countBuckets(times []int64, use useCount) error {
	bounds := make([]entry, len(times))
	for i, at := range times {
		bounds[i].Time = at
	}
	for _, root := range r.trees {
		if err := countBetween(&r.pages, root, bounds, len(r.series), use); err != nil {
			return err
		}
	}
	return nil
}

func countBetween(p *pages, root *child, bounds []entry, series int, use useCount) error {
	c := bucketCounter{pages: p, bounds: bounds, use: use, passed: make([]uint64, series)}
	c.reach(root.first)
	if err := c.walk(root, nil); err != nil {
		return err
	}
	c.note()
	return nil
}

// walk counts the events below a child, which are all less than end; nil: no end is known.
func (c *bucketCounter) walk(at *child, end *entry) error {
	if c.next == len(c.bounds) || end != nil && c.bounds[c.next].compare(end) >= 0 { // no bound is between them
		for _, s := range at.counts {
			c.add(s.series, s.n)
		}
		return nil
	}
	return c.visit(at, func(n *node) error {
		for _, e := range n.entries {
			c.reach(e)
			c.add(e.series, 1)
		}
		for i := range n.children {
			below, next := &n.children[i], end
			if i+1 < len(n.children) {
				next = &n.children[i+1].first
			}
			c.reach(below.first)
			if err := c.walk(below, next); err != nil {
				return err
			}
		}
		return nil
	})
}

// reach moves to a key. When bounds are passed, it notes the events before them.
func (c *bucketCounter) reach(k entry) {
	for c.next < len(c.bounds) && c.bounds[c.next].compare(&k) <= 0 {
		c.note()
		c.next++
	}
}

func (c *bucketCounter) add(series uint32, n uint64) {
	if c.passed[series] == 0 {
		c.touched = append(c.touched, series)
	}
	c.passed[series] += n
}

// note passes the counts since the last bound to use.
func (c *bucketCounter) note() {
	for _, series := range c.touched {
		c.use(c.next, series, c.passed[series])
		c.passed[series] = 0
	}
	c.touched = c.touched[:0]
}
