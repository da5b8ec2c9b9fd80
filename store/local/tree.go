package local

import (
	"cmp"
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
	return k.position.compare(o.position)
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

// isEmpty reports whether c is the root of a tree without events, the zero child.
func (c *child) isEmpty() bool { return c.node == nil && c.id == 0 }

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

// loader brings a node into memory, to be changed; nil where all are.
type loader func(id uint64) (*node, error)

// insertAtRoot adds an entry to the tree of which c is the root; c is the zero child for an empty
// tree.
func (c *child) insertAtRoot(e entry, load loader) error {
	if c.isEmpty() {
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
func (c *child) insertLeafAtRoot(leaf *child, load loader) error {
	if c.isEmpty() {
		*c = leaf.clone()
		return nil
	}
	last, err := c.lastLeaf(load)
	if err != nil {
		return err
	}
	// A leaf that follows is taken as a whole, unless one would be left that is less than half full.
	n := len(last.entries)
	if min(n, len(leaf.node.entries)) >= leafEntries/2 && last.entries[n-1].compare(leaf.first) < 0 {
		c.raise(c.appendLeaf(leaf.clone()))
		return nil
	}
	for _, e := range leaf.node.entries {
		if err := c.insertAtRoot(e, load); err != nil {
			return err
		}
	}
	return nil
}

// lastLeaf brings the last leaf below c into memory, with the nodes above it, to be changed.
func (c *child) lastLeaf(load loader) (leaf *node, err error) {
	for {
		if c.node == nil {
			if c.node, err = load(c.id); err != nil {
				return nil, err
			}
		}
		if c.node.children == nil {
			return c.node, nil
		}
		c = &c.node.children[len(c.node.children)-1]
	}
}

// appendLeaf puts a leaf behind all that is below c. It returns c's new right sibling as insert does.
func (c *child) appendLeaf(leaf child) (right *child) {
	n := c.node
	if n.children == nil {
		return &leaf
	}
	last := len(n.children) - 1
	if below := n.children[last].appendLeaf(leaf); below != nil {
		if right = n.insertChild(last+1, *below); right != nil {
			c.recount()
			return right
		}
	}
	for _, s := range leaf.counts {
		c.counts.add(s.series, s.n)
	}
	return nil
}

// raise puts a root above c and its right sibling, where it has one.
func (c *child) raise(right *child) {
	if right != nil {
		*c = newChild(&node{children: append(make([]child, 0, innerChildren), *c, *right)})
	}
}

// clone copies a leaf, with room for entries to come.
func (c *child) clone() child {
	entries := append(make([]entry, 0, leafEntries), c.node.entries...)
	return child{first: c.first, counts: slices.Clone(c.counts), node: &node{entries: entries}}
}

// leaves lists the leaves below c, in their order. All nodes are in memory.
func (c *child) leaves() (all []*child) {
	if c.node.children == nil {
		return []*child{c}
	}
	for i := range c.node.children {
		all = append(all, c.node.children[i].leaves()...)
	}
	return all
}

// insert adds an entry below c and returns c's new right sibling where c's node had to be split.
func (c *child) insert(e entry, load loader) (right *child, err error) {
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
