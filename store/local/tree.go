package local

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sort"
)

// The index of a merchant's events is a counted B+ tree. Its leaves hold one entry per event in the
// order (event time, position); each inner node knows, for each of its children, how many events of
// each series (tag and name) are below it. So the number of events before a time, of any choice of
// series, is a sum along one path, and the n-th event of that choice is found by walking one path
// down, whatever the number of events, the page, or how the times are spread.

// entryKey orders events: by time, equal times by position.
type entryKey struct {
	time int64 // µs since 1970
	position
}

func (k entryKey) compare(o entryKey) int {
	if k.time != o.time { // which is the rule
		return cmp.Compare(k.time, o.time)
	}
	return cmp.Or(cmp.Compare(k.seq, o.seq), cmp.Compare(k.index, o.index))
}

// entry is an event in a leaf.
type entry struct {
	entryKey
	series uint32
}

// Sizes of nodes. Entries take about 9 bytes, children about 60 with 20 series.
const (
	leafEntries   = 128
	innerChildren = 64
)

// node is a leaf, with entries, or an inner node, with children; never both.
type node struct {
	entries  []entry
	children []child
}

// child is an inner node's knowledge of one node below it.
type child struct {
	first  entryKey // no entry below is less
	counts counts   // events below, by series
	id     uint64   // where the node is stored; 0 while it never was
	node   *node    // the node while it is in memory, because it changed; else nil
}

// counts is a number of events for each series, ascending by series, without zeroes.
type counts []seriesCount

type seriesCount struct {
	series uint32
	n      uint64
}

// of is the number of events of some series; nil for all.
func (c counts) of(series []bool) (n uint64) {
	for _, s := range c {
		if series == nil || series[s.series] {
			n += s.n
		}
	}
	return n
}

func (c *counts) add(series uint32, n uint64) {
	s := *c
	i := len(s)
	// Most merchants have few series: a linear search from the end beats a binary one.
	for i > 0 && s[i-1].series > series {
		i--
	}
	if i > 0 && s[i-1].series == series {
		s[i-1].n += n
		return
	}
	*c = slices.Insert(s, i, seriesCount{series, n})
}

// newChild describes a node that is in memory.
func newChild(n *node) child {
	c := child{node: n}
	if n.children == nil {
		c.first = n.entries[0].entryKey
		for _, e := range n.entries {
			c.counts.add(e.series, 1)
		}
		return c
	}
	c.first = n.children[0].first
	for _, below := range n.children {
		for _, s := range below.counts {
			c.counts.add(s.series, s.n)
		}
	}
	return c
}

// insertAtRoot adds an entry to the tree of which c is the root; c is the zero child for an empty
// tree. load brings a node into memory, to be changed; nil where all are.
func (c *child) insertAtRoot(e entry, load func(id uint64) (*node, error)) error {
	if c.node == nil && c.id == 0 {
		*c = newChild(&node{entries: []entry{e}})
		return nil
	}
	right, err := c.insert(e, load)
	if err != nil {
		return err
	}
	c.raise(right)
	return nil
}

// insertLeafAtRoot is insertAtRoot for all entries of a leaf of another tree, which stays as it is.
func (c *child) insertLeafAtRoot(leaf *child, load func(id uint64) (*node, error)) error {
	if c.node == nil && c.id == 0 {
		*c = leaf.clone()
		return nil
	}
	right, done, err := c.appendLeaf(leaf, load)
	if err != nil {
		return err
	}
	if done {
		c.raise(right)
		return nil
	}
	for _, e := range leaf.node.entries {
		if err := c.insertAtRoot(e, load); err != nil {
			return err
		}
	}
	return nil
}

// raise puts a root above c and its right sibling, where it has one.
func (c *child) raise(right *child) {
	if right != nil {
		*c = newChild(&node{children: append(make([]child, 0, innerChildren), *c, *right)})
	}
}

// clone copies a leaf.
func (c *child) clone() child {
	entries := append(make([]entry, 0, leafEntries), c.node.entries...)
	return child{first: c.first, counts: slices.Clone(c.counts), node: &node{entries: entries}}
}

// eachLeaf calls visit for each leaf below c, in their order. All nodes are in memory.
func (c *child) eachLeaf(visit func(leaf *child) error) error {
	switch {
	case c.node == nil:
		return nil
	case c.node.children == nil:
		return visit(c)
	}
	for i := range c.node.children {
		if err := c.node.children[i].eachLeaf(visit); err != nil {
			return err
		}
	}
	return nil
}

// appendLeaf adds a leaf as a whole behind all that is below c: what one entry takes then does for a hundred. It
// returns c's new right sibling as insert does, and reports whether it was done: not where the leaf does not follow, nor where a
// leaf would be left that is less than half full.
func (c *child) appendLeaf(leaf *child, load func(id uint64) (*node, error)) (right *child, done bool, err error) {
	if c.node == nil {
		if c.node, err = load(c.id); err != nil {
			return nil, false, err
		}
	}
	n := c.node
	if n.children == nil {
		last := len(n.entries) - 1
		if min(last+1, len(leaf.node.entries)) < leafEntries/2 || n.entries[last].compare(leaf.first) > 0 {
			return nil, false, nil
		}
		r := leaf.clone()
		return &r, true, nil
	}
	i := len(n.children) - 1
	below, done, err := n.children[i].appendLeaf(leaf, load)
	if err != nil || !done {
		return nil, false, err
	}
	if below != nil {
		right = n.insertChild(i+1, *below)
	}
	if right != nil {
		c.recount()
		return right, true, nil
	}
	for _, s := range leaf.counts {
		c.counts.add(s.series, s.n)
	}
	return nil, true, nil
}

// insert adds an entry below c and returns c's new right sibling where c's node had to be split.
// load brings a node into memory, to be changed.
func (c *child) insert(e entry, load func(id uint64) (*node, error)) (right *child, err error) {
	if c.node == nil {
		if c.node, err = load(c.id); err != nil {
			return nil, err
		}
	}
	n := c.node
	if n.children == nil {
		right = n.insertEntry(e)
	} else {
		// The last child that begins at or before e, or the first. In order of time it is the last of all.
		i := len(n.children) - 1
		if n.children[i].first.compare(e.entryKey) > 0 {
			i = max(0, sort.Search(i, func(i int) bool { return n.children[i].first.compare(e.entryKey) > 0 })-1)
		}
		below, err := n.children[i].insert(e, load)
		if err != nil {
			return nil, err
		}
		if below != nil {
			right = n.insertChild(i+1, *below)
		}
	}
	if right != nil {
		c.recount()
		return right, nil
	}
	c.counts.add(e.series, 1)
	if e.compare(c.first) < 0 {
		c.first = e.entryKey
	}
	return nil, nil
}

// recount describes c's node anew, once it was split.
func (c *child) recount() {
	left := newChild(c.node)
	c.first, c.counts = left.first, left.counts
}

func (n *node) insertEntry(e entry) (right *child) {
	i := len(n.entries)
	if i > 0 && n.entries[i-1].compare(e.entryKey) > 0 {
		i = sort.Search(i, func(i int) bool { return n.entries[i].compare(e.entryKey) > 0 })
	}
	if len(n.entries) == leafEntries {
		r := &node{}
		n.entries, r.entries = insertFull(n.entries, i, e)
		c := newChild(r)
		return &c
	}
	n.entries = slices.Insert(n.entries, i, e)
	return nil
}

func (n *node) insertChild(i int, c child) (right *child) {
	if len(n.children) == innerChildren {
		r := &node{}
		n.children, r.children = insertFull(n.children, i, c)
		rc := newChild(r)
		return &rc
	}
	n.children = slices.Insert(n.children, i, c)
	return nil
}

// insertFull splits the items of a full node around an insertion at i. In order of time, which is the rule,
// the left node stays full; else both get room.
func insertFull[T any](items []T, i int, item T) (left, right []T) {
	at := len(items) / 2
	if i == len(items) {
		at = i
	}
	right = append(make([]T, 0, len(items)), items[at:]...)
	clear(items[at:])
	left = items[:at]
	if i < at {
		return slices.Insert(left, i, item), right
	}
	return left, slices.Insert(right, i-at, item)
}

// The stored form of a node: 0 and the entries, or 1 and the children. Keys are differences to the
// key before.
//
//	entry:  key, series (uvarint)
//	child:  key, id (uvarint), number of series (uvarint), for each: series as difference to the
//	        one before (uvarint), events (uvarint)
//	key:    time (varint), seq (varint), index (uvarint, not a difference)

func (n *node) encode(b []byte) []byte {
	var prev entryKey
	if n.children == nil {
		b = binary.AppendUvarint(append(b, 0), uint64(len(n.entries)))
		for _, e := range n.entries {
			b = appendEntryKey(b, &prev, e.entryKey)
			b = binary.AppendUvarint(b, uint64(e.series))
		}
		return b
	}
	b = binary.AppendUvarint(append(b, 1), uint64(len(n.children)))
	for _, c := range n.children {
		b = appendEntryKey(b, &prev, c.first)
		b = binary.AppendUvarint(b, c.id)
		b = c.counts.encode(b)
	}
	return b
}

func decodeNode(b []byte) (*node, error) {
	d := decoder{b: b}
	n := &node{}
	var prev entryKey
	switch kind, count := d.uvarint(), d.count(); kind {
	case 0:
		n.entries = make([]entry, count, max(count, leafEntries))
		for i := range n.entries {
			n.entries[i].entryKey = d.entryKey(&prev)
			n.entries[i].series = uint32(d.uvarint())
		}
	case 1:
		n.children = make([]child, count, max(count, innerChildren))
		var all counts // one allocation for the counts of all children
		for i := range n.children {
			c := &n.children[i]
			c.first = d.entryKey(&prev)
			c.id = d.uvarint()
			start := len(all)
			all = d.counts(all)
			c.counts = all[start:len(all):len(all)]
		}
	default:
		d.failed = true
	}
	return n, d.err("index node")
}

func (c counts) encode(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(c)))
	var prev uint32
	for _, s := range c {
		b = binary.AppendUvarint(b, uint64(s.series-prev))
		b = binary.AppendUvarint(b, s.n)
		prev = s.series
	}
	return b
}

// counts appends the counts that come next to c.
func (d *decoder) counts(c counts) counts {
	var prev uint32
	for range d.count() {
		prev += uint32(d.uvarint())
		c = append(c, seriesCount{prev, d.uvarint()})
	}
	return c
}

func appendEntryKey(b []byte, prev *entryKey, k entryKey) []byte {
	b = binary.AppendVarint(b, k.time-prev.time)
	b = binary.AppendVarint(b, int64(k.seq-prev.seq))
	b = binary.AppendUvarint(b, uint64(k.index))
	*prev = k
	return b
}

func (d *decoder) entryKey(prev *entryKey) entryKey {
	prev.time += d.varint()
	prev.seq += uint64(d.varint())
	prev.index = uint16(d.uvarint())
	return *prev
}
