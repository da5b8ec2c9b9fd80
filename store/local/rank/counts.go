package rank

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"sort"

	"mtagd/store/local/codec"
)

// bucketCounter counts the events of a tree before each of several times, by column: each series has one. It walks a tree
// once, and goes only into nodes that have a bound between their events.
type bucketCounter struct {
	bounds []int64  // sorted times (µs since 1970)
	column []uint32 // by series; those of width and above are not counted
	width  int      // number of columns that are counted
	counts []uint64 // by bound and column; the counts of each tree are added

	next   int      // the next bound of the tree that is being counted
	passed []uint64 // how many of its events are before the current place, by column

	// Of the nodes above the current place, by depth.
	saved    [][]uint64      // what passed was at the beginning of the node
	children [][]storedChild // what is below it
}

// addRecent counts events in memory. It adds those between two bounds to the later one only, so the counts must be summed up
// before events are added that are stored.
func (c *bucketCounter) addRecent(events []bucketEvents) {
	for _, e := range events {
		if column := int(c.column[e.series]); e.bound < len(c.bounds) && column < c.width {
			c.counts[e.bound*c.width+column] += e.n
		}
	}
}

// addStored counts the events of the stored tree.
func (c *bucketCounter) addStored(r *reader) error {
	for i := range r.stored {
		root := &r.stored[i]
		c.begin(root)
		if err := c.scan(r, storedChild{root.first, root.id, root.counts.encode(nil)}, lastKey, 0); err != nil {
			return err
		}
		c.reach(lastKey)
	}
	return nil
}

// lastKey is not less than any event.
var lastKey = Key{Time: math.MaxInt64, Position: codec.Position{Seq: math.MaxUint64, Index: math.MaxUint16}}

func (c *bucketCounter) begin(root *child) {
	c.next, c.passed = 0, make([]uint64, c.width+1)
	c.reach(root.first)
}

// reach notes how many events are before each of the next bounds that are not after k.
func (c *bucketCounter) reach(k Key) {
	for c.next < len(c.bounds) && (Key{Time: c.bounds[c.next]}).compare(k) <= 0 {
		before := c.counts[c.next*c.width:][:c.width]
		for column, n := range c.passed[:c.width] {
			before[column] += n
		}
		c.next++
	}
}

// isWhole reports whether no bound is left before end.
func (c *bucketCounter) isWhole(end Key) bool {
	return c.next == len(c.bounds) || (Key{Time: c.bounds[c.next]}).compare(end) >= 0
}

// storedChild is a child whose node is stored.
type storedChild struct {
	first  Key
	id     uint64
	counts []byte // as counts.encode writes them
}

// scan counts the events below a stored child, which are all less than end. It does what recentCounter.walk does, but reads the
// stored form of nodes: most of the time of a summary is spent on the counts of inner nodes, and most of them need not be
// decoded.
func (c *bucketCounter) scan(r *reader, at storedChild, end Key, depth int) error {
	if c.isWhole(end) {
		if !c.add(at.counts, 1) {
			return c.corrupt(r, at.id)
		}
		return nil
	}
	if err := r.ctx.Err(); err != nil {
		return err
	}
	if depth == len(c.saved) {
		c.saved = append(c.saved, make([]uint64, len(c.passed)))
		c.children = append(c.children, make([]storedChild, 0, innerChildren))
	}
	copy(c.saved[depth], c.passed)
	key := nodeKey(r.m, at.id)
	d := codec.Decoder{B: codec.Unseal(key, r.nodes.Get(key))}
	kind, count := d.Uvarint(), d.Count()
	var prev Key
	if kind == 0 {
		for range count {
			c.reach(decodeKey(&d, &prev))
			series := d.Uvarint()
			d.Uvarint()
			if series >= uint64(len(c.column)) {
				d.Fail()
				break
			}
			c.passed[c.column[series]]++
		}
		if d.Err("") != nil {
			return c.corrupt(r, at.id)
		}
		return nil
	}
	children := c.children[depth][:0]
	for range count {
		below := storedChild{first: decodeKey(&d, &prev), id: d.Uvarint()}
		d.Uvarint()
		below.counts = cutCounts(&d)
		children = append(children, below)
	}
	c.children[depth] = children
	if d.Err("") != nil || kind != 1 || count == 0 {
		return c.corrupt(r, at.id)
	}
	i, ok := c.shortcut(at, children, end)
	if !ok {
		return c.corrupt(r, at.id)
	}
	for ; i < count; i++ {
		c.reach(children[i].first)
		next := end
		if i+1 < count {
			next = children[i+1].first
		}
		if err := c.scan(r, children[i], next, depth+1); err != nil {
			return err
		}
		if i+1 < count && c.isWhole(end) { // the rest of the node is what its parent counts without what came before
			copy(c.passed, c.saved[depth])
			if !c.add(at.counts, 1) {
				return c.corrupt(r, at.id)
			}
			return nil
		}
	}
	return nil
}

// shortcut passes the children before the one that has the first bound, if it is the only one with bounds and has fewer
// siblings behind it than before it: these are subtracted from the counts of the whole node. It returns the next child. ok is
// false when counts are corrupt.
func (c *bucketCounter) shortcut(at storedChild, children []storedChild, end Key) (next int, ok bool) {
	find := func(bound int) int {
		k := Key{Time: c.bounds[bound]}
		return max(0, sort.Search(len(children), func(i int) bool { return children[i].first.compare(k) >= 0 })-1)
	}
	first := find(c.next)
	last := sort.Search(len(c.bounds), func(i int) bool { return (Key{Time: c.bounds[i]}).compare(end) >= 0 }) - 1
	if first <= len(children)/2 || find(last) != first {
		return 0, true
	}
	ok = c.add(at.counts, 1)
	for _, below := range children[first:] {
		ok = ok && c.add(below.counts, ^uint64(0))
	}
	return first, ok
}

func (c *bucketCounter) corrupt(r *reader, id uint64) error {
	return fmt.Errorf("index.db: node %d of merchant %x: %w: index node", id, r.m, codec.ErrCorrupt)
}

// cutCounts skips the counts of a child, and returns their bytes.
func cutCounts(d *codec.Decoder) []byte {
	start := d.B
	left := 2 * d.Count() // varints; the last byte of each is below 0x80
	b := d.B
	for left >= 8 && len(b) >= 8 {
		left -= bits.OnesCount64(^binary.LittleEndian.Uint64(b) & 0x8080_8080_8080_8080)
		b = b[8:]
	}
	for left > 0 && len(b) > 0 {
		if b[0] < 0x80 {
			left--
		}
		b = b[1:]
	}
	if left > 0 {
		d.Fail()
		return nil
	}
	d.B = b
	return start[:len(start)-len(b)]
}

// add adds encoded counts, times a factor, to passed. It returns false when they are corrupt.
func (c *bucketCounter) add(b []byte, factor uint64) bool {
	d := codec.Decoder{B: b}
	n := d.Count()
	b = d.B
	series := uint64(0)
	for range n {
		var delta, n uint64
		if len(b) >= 2 && b[0]|b[1] < 0x80 { // the common case
			delta, n, b = uint64(b[0]), uint64(b[1]), b[2:]
		} else {
			d.B = b
			delta, n = d.Uvarint(), d.Uvarint()
			b = d.B
		}
		series += delta
		if series >= uint64(len(c.column)) {
			return false
		}
		c.passed[c.column[series]] += n * factor
	}
	return d.Err("") == nil
}

// bucketEvents is how many events of a series are between a bound and the one before it.
type bucketEvents struct {
	bound  int // the first one after the events; the number of bounds when none is
	series uint32
	n      uint64
}

// recentCounter counts the events of trees in memory by bound and series. Its memory does not depend on the number of bounds
// or series, but on that of events at most.
type recentCounter struct {
	bounds []int64
	found  []bucketEvents

	next    int      // the first bound after the current place
	passed  []uint64 // events between the bound before it and the current place, by series
	touched []uint32 // the series of which passed is not 0
}

// countRecent counts the events in memory. The caller holds Index.mu.
func (r *reader) countRecent(bounds []int64) []bucketEvents {
	c := recentCounter{bounds: bounds, passed: make([]uint64, len(r.series))}
	for _, root := range r.trees {
		if root.node != nil {
			c.next = 0
			c.reach(root.first)
			c.walk(root, lastKey)
			c.note()
		}
	}
	return c.found
}

// walk counts the events below a child, which are all less than end.
func (c *recentCounter) walk(at *child, end Key) {
	if c.next == len(c.bounds) || (Key{Time: c.bounds[c.next]}).compare(end) >= 0 { // no bound is between them
		for _, s := range at.counts {
			c.add(s.series, s.n)
		}
		return
	}
	for _, e := range at.node.entries {
		c.reach(e.Key)
		c.add(e.series, 1)
	}
	for i := range at.node.children {
		below := &at.node.children[i]
		c.reach(below.first)
		next := end
		if i+1 < len(at.node.children) {
			next = at.node.children[i+1].first
		}
		c.walk(below, next)
	}
}

// reach moves to a key. When bounds are passed, it notes the events before them.
func (c *recentCounter) reach(k Key) {
	for c.next < len(c.bounds) && (Key{Time: c.bounds[c.next]}).compare(k) <= 0 {
		c.note()
		c.next++
	}
}

func (c *recentCounter) add(series uint32, n uint64) {
	if c.passed[series] == 0 {
		c.touched = append(c.touched, series)
	}
	c.passed[series] += n
}

// note notes the events since the last bound.
func (c *recentCounter) note() {
	for _, series := range c.touched {
		c.found = append(c.found, bucketEvents{c.next, series, c.passed[series]})
		c.passed[series] = 0
	}
	c.touched = c.touched[:0]
}
