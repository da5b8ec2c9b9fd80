package rank

import (
	"cmp"
	"slices"
	"sort"
	"strings"

	"mtagd/store"
)

// A merchant's events are in counted B+ trees. The leaves hold one entry per event, ordered by Key. An inner node knows
// for each of its children how many events of each series are below it. So a walk from the root to one leaf counts the
// events of some series before a key, and another such walk finds the n-th event of some series. The cost is the same for
// every page and every distribution of times. Runs (names.go) are such trees in the order of names.

// Key orders events: by time, equal times by position.
type Key struct {
	Time int64 // µs since 1970
	store.Position
}

func (k Key) compare(o Key) int {
	if k.Time != o.Time { // the common case
		return cmp.Compare(k.Time, o.Time)
	}
	return k.Position.Compare(o.Position)
}

// entry is an event in a leaf.
type entry struct {
	Key
	series uint32
	size   uint32 // codec.Event.Size; 0 in a run
	name   string // only in runs
}

// compare orders by name, equal names by Key. So the tree of times, without names, is ordered by Key.
func (e *entry) compare(o *entry) int {
	if e.name != "" || o.name != "" {
		if c := strings.Compare(e.name, o.name); c != 0 {
			return c
		}
	}
	return e.Key.compare(o.Key)
}

// Sizes of nodes. Entries take about 11 bytes, children about 65 with 20 series.
const (
	leafEntries   = 128
	innerChildren = 16
)

// node is a leaf, with entries, or an inner node, with children; never both.
type node struct {
	entries  []entry
	children []child
	shared   bool // with readers: it must not change any more
}

// child is what an inner node knows about one node below it.
type child struct {
	first entry  // no entry below is less
	tally        // of the events below
	id    uint64 // the stored node; 0 when the node was never stored
	node  *node  // the node in memory, when it changed or was never stored; else nil
}

// tally says how many events there are, and how large they are.
type tally struct {
	counts counts
	bytes  uint64 // sum of their sizes
}

func (t *tally) add(more tally) {
	for _, s := range more.counts {
		t.counts.add(s.series, s.n)
	}
	t.bytes += more.bytes
}

func (t *tally) addEntry(e entry) {
	t.counts.add(e.series, 1)
	t.bytes += uint64(e.size)
}

// isEmpty reports whether the tree whose root is c has no events. The zero child is the root of an empty tree.
func (c *child) isEmpty() bool { return c.node == nil && c.id == 0 }

// counts are numbers of events by series, in ascending order of series, without zeroes.
type counts []seriesCount

type seriesCount struct {
	series uint32
	n      uint64
}

// of returns the number of events of the series in members (see reader).
func (c counts) of(members []bool) (n uint64) {
	for _, s := range c {
		if members == nil || members[s.series] {
			n += s.n
		}
	}
	return n
}

func (c *counts) add(series uint32, n uint64) {
	s := *c
	i := len(s)
	// Most merchants have few series, so a linear search from the end is faster than a binary search.
	for i > 0 && s[i-1].series > series {
		i--
	}
	if i > 0 && s[i-1].series == series {
		s[i-1].n += n
		return
	}
	*c = slices.Insert(s, i, seriesCount{series, n})
}

// newChild returns the child for a node in memory.
func newChild(n *node) child {
	c := child{node: n}
	if n.children == nil {
		c.first = n.entries[0]
		for i := range n.entries {
			c.addEntry(n.entries[i])
		}
		return c
	}
	c.first = n.children[0].first
	for i := range n.children {
		c.add(n.children[i].tally)
	}
	return c
}

// loader loads a stored node, to change it. It may be nil when all nodes of the tree are in memory.
type loader func(id uint64) (*node, error)

// open returns c's node, to change it or what is below.
func (c *child) open(load loader) (_ *node, err error) {
	switch {
	case c.node == nil:
		c.node, err = load(c.id)
	case c.node.shared:
		c.node = c.node.copy()
	}
	return c.node, err
}

// share returns c as it is now, for readers: who changes the tree copies its nodes first. All nodes are in memory.
func (c *child) share() child {
	if c.node != nil {
		c.node.shared = true
	}
	snapshot := *c
	snapshot.counts = slices.Clone(c.counts)
	return snapshot
}

// copy returns a copy, to change it. The nodes below are shared.
func (n *node) copy() *node {
	if n.children == nil {
		return &node{entries: append(make([]entry, 0, leafEntries), n.entries...)}
	}
	children := append(make([]child, 0, innerChildren), n.children...)
	for i := range children {
		children[i] = children[i].share()
	}
	return &node{children: children}
}

// insertAtRoot adds an entry to the tree whose root is c.
func (c *child) insertAtRoot(e entry, load loader) error {
	if c.isEmpty() {
		*c = newChild(&node{entries: []entry{e}})
		return nil
	}
	right, err := c.insert(&e, load)
	if err != nil {
		return err
	}
	c.raise(right)
	return nil
}

// insertLeafAtRoot adds all entries of another tree's leaf to the tree whose root is c. The leaf does not change.
func (c *child) insertLeafAtRoot(leaf *child, load loader) error {
	if c.isEmpty() {
		*c = leaf.clone()
		return nil
	}
	last, err := c.lastLeaf(load)
	if err != nil {
		return err
	}
	// A leaf that comes after all entries is appended as it is, if both it and the last leaf are at least half full.
	n := len(last.entries)
	if min(n, len(leaf.node.entries)) >= leafEntries/2 && last.entries[n-1].compare(&leaf.first) < 0 {
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

// lastLeaf returns the last leaf below c. It loads the leaf and the nodes above it, to change them.
func (c *child) lastLeaf(load loader) (*node, error) {
	for {
		n, err := c.open(load)
		if err != nil || n.children == nil {
			return n, err
		}
		c = &n.children[len(n.children)-1]
	}
}

// appendLeaf appends a leaf to what is below c. When c's node had to be split, it returns c's new right sibling.
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
	c.add(leaf.tally)
	return nil
}

// raise makes c a new root above the old one and its right sibling. Without one, because it was not split, c stays as it is.
func (c *child) raise(right *child) {
	if right != nil {
		*c = newChild(&node{children: append(make([]child, 0, innerChildren), *c, *right)})
	}
}

// clone copies a leaf, with space for further entries.
func (c *child) clone() child {
	return child{first: c.first, tally: tally{slices.Clone(c.counts), c.bytes}, node: c.node.copy()}
}

// leaves returns the leaves below c in their order. All nodes must be in memory.
func (c *child) leaves() (all []*child) {
	if c.node.children == nil {
		return []*child{c}
	}
	for i := range c.node.children {
		all = append(all, c.node.children[i].leaves()...)
	}
	return all
}

// insert adds an entry below c. When c's node had to be split, it returns c's new right sibling.
func (c *child) insert(e *entry, load loader) (right *child, err error) {
	n, err := c.open(load)
	if err != nil {
		return nil, err
	}
	if n.children == nil {
		right = n.insertEntry(e)
	} else {
		// Find the last child that begins at or before e, else the first one. In the order of time it is the last child.
		i := len(n.children) - 1
		if n.children[i].first.compare(e) > 0 {
			i = max(0, sort.Search(i, func(i int) bool { return n.children[i].first.compare(e) > 0 })-1)
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
	c.addEntry(*e)
	if e.compare(&c.first) < 0 {
		c.first = *e
	}
	return nil, nil
}

// recount updates c after its node was split.
func (c *child) recount() {
	left := newChild(c.node)
	c.first, c.tally = left.first, left.tally
}

func (n *node) insertEntry(e *entry) (right *child) {
	i := len(n.entries)
	if i > 0 && n.entries[i-1].compare(e) > 0 {
		i = sort.Search(i, func(i int) bool { return n.entries[i].compare(e) > 0 })
	}
	var split []entry
	if n.entries, split = insertItem(n.entries, i, *e, leafEntries); split == nil {
		return nil
	}
	return new(newChild(&node{entries: split}))
}

func (n *node) insertChild(i int, c child) (right *child) {
	var split []child
	if n.children, split = insertItem(n.children, i, c, innerChildren); split == nil {
		return nil
	}
	return new(newChild(&node{children: split}))
}

// insertItem inserts an item of a node at i. It splits a full node: right is the items of the new one. Both get half of
// them, but before a last item, the common case as events come in the order of time, the left node stays full.
func insertItem[T any](items []T, i int, item T, full int) (left, right []T) {
	if len(items) < full {
		return slices.Insert(items, i, item), nil
	}
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
