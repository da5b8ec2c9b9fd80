package rank

import (
	"fmt"
	"slices"
	"sort"

	"mtagd/store/local/codec"
)

// Removing entries changes the nodes above them, like adding does. A node without entries below it is taken out of its
// parent. Changed neighbours become one node when they fit into one. An unchanged neighbour is not loaded for that.

// removeKeys removes these entries, which are sorted, from below c. It may leave c without entries.
func (c *child) removeKeys(keys []entry, load loader) (removed tally, err error) {
	n, err := c.open(load)
	if err != nil {
		return tally{}, err
	}
	n.entries = slices.DeleteFunc(n.entries, func(e entry) bool {
		_, found := slices.BinarySearchFunc(keys, e, byName)
		if found {
			removed.addEntry(e)
		}
		return found
	})
	for i := range n.children {
		end := len(keys)
		if i+1 < len(n.children) {
			end, _ = slices.BinarySearchFunc(keys, n.children[i+1].first, byName)
		}
		if end == 0 {
			continue
		}
		r, err := n.children[i].removeKeys(keys[:end], load)
		if err != nil {
			return tally{}, err
		}
		removed.add(r)
		keys = keys[end:]
	}
	n.dropEmpty()
	n.join()
	return removed, c.subtract(removed)
}

// removeBefore removes the entries before k from below c, and may leave none. A leaf has height 0. All nodes must be stored.
func (c *child) removeBefore(k entry, height uint8, load loader, free func(id uint64, height uint8)) (removed tally, err error) {
	n, err := c.open(load)
	if err != nil {
		return tally{}, err
	}
	if height == 0 {
		i := sort.Search(len(n.entries), func(i int) bool { return n.entries[i].compare(&k) >= 0 })
		for _, e := range n.entries[:i] {
			removed.addEntry(e)
		}
		n.entries = n.entries[i:]
		return removed, c.subtract(removed)
	}
	// As in addBefore: of the children that begin before k, only the last one may have entries that are not.
	i := sort.Search(len(n.children), func(i int) bool { return n.children[i].first.compare(&k) >= 0 })
	if i > 0 {
		i--
		for _, before := range n.children[:i] {
			removed.add(before.tally)
			free(before.id, height-1)
		}
		n.children = n.children[i:]
		r, err := n.children[0].removeBefore(k, height-1, load, free)
		if err != nil {
			return tally{}, err
		}
		removed.add(r)
		n.dropEmpty()
	}
	return removed, c.subtract(removed)
}

// cutTop removes the nodes at the top that have only one child, and the root of a tree without entries.
func (c *child) cutTop() {
	for c.node != nil && len(c.node.children) == 1 {
		*c = c.node.children[0]
	}
	if c.node != nil && c.node.isEmpty() {
		*c = child{}
	}
}

func (n *node) isEmpty() bool { return len(n.entries) == 0 && len(n.children) == 0 }

// dropEmpty takes out the children that have nothing below them.
func (n *node) dropEmpty() {
	n.children = slices.DeleteFunc(n.children, func(c child) bool { return c.node != nil && c.node.isEmpty() })
}

// join makes one child of neighbours that have changed and fit into one node.
func (n *node) join() {
	for i := len(n.children) - 1; i > 0; i-- {
		left, right := &n.children[i-1], &n.children[i]
		if left.node == nil || right.node == nil ||
			len(left.node.entries)+len(right.node.entries) > leafEntries ||
			len(left.node.children)+len(right.node.children) > innerChildren {
			continue
		}
		*left = newChild(&node{
			entries:  slices.Concat(left.node.entries, right.node.entries),
			children: slices.Concat(left.node.children, right.node.children),
		})
		n.children = slices.Delete(n.children, i, i+1)
	}
}

// subtract updates c after entries were removed below its node.
func (c *child) subtract(removed tally) error {
	for _, r := range removed.counts {
		i := slices.IndexFunc(c.counts, func(s seriesCount) bool { return s.series == r.series })
		if i < 0 || c.counts[i].n < r.n {
			return errCounts
		}
		c.counts[i].n -= r.n
	}
	if c.bytes < removed.bytes {
		return errCounts
	}
	c.bytes -= removed.bytes
	c.counts = slices.DeleteFunc(c.counts, func(s seriesCount) bool { return s.n == 0 })
	switch n := c.node; {
	case len(n.children) > 0:
		c.first = n.children[0].first
	case len(n.entries) > 0:
		c.first = n.entries[0]
	}
	return nil
}

// errCounts says that the counts of an inner node are not those of the nodes below it.
var errCounts = fmt.Errorf("index.db: %w: counts of a node", codec.ErrCorrupt)
