package rank

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
)

// A merge writes the frozen events of all merchants into the stored trees. It is crash safe without a log:
//
//   - A stored node never changes. A merge writes the changed node under a new id.
//   - One transaction writes the new root record of a merchant, and deletes or frees the replaced nodes. So readers, and the
//     next start after a crash, see either the old tree or the new one.
//   - A merge that exceeds txBudget takes several transactions. When it is cut off, the next merge deletes what it left
//     behind.

// txBudget bounds the memory of a merge: the entries that a transaction may load, write or delete. Events are merged in the
// order of the tree, so few nodes are needed again. The sweeper has a smaller budget, as merges wait for it.
const (
	txBudget    = 250_000
	sweepBudget = 125_000

	// deletedAtOnce is how many nodes the transaction that has replaced them deletes. Each may be on its own page,
	// which is written again. The sweeper deletes the others: backdated events may replace all leaves of a large tree.
	deletedAtOnce = txBudget / leafEntries
)

// frozenEvents are the events that one merge writes.
type frozenEvents struct {
	trees   map[store.MerchantKey]*recentEvents
	covered uint64 // the events of chunks up to this seq are in the stored trees or in these
}

// merger writes the transactions of a merge, one after the other.
type merger struct {
	x      *Index
	ctx    context.Context // ends the merge between two transactions
	budget int             // of each transaction, in entries
	commit func(*bolt.Tx) error

	tx    *bolt.Tx
	nodes *bolt.Bucket
	left  int // of the budget of tx
}

func (w *merger) begin() error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	tx, err := w.x.db.Begin(true)
	if err != nil {
		return err
	}
	w.tx, w.nodes, w.left = tx, tx.Bucket(bucketNodes), w.budget
	w.nodes.FillPercent = 1 // no need to leave space in pages: stored nodes do not grow, and new ones have higher keys
	return nil
}

// next commits the transaction and begins another.
func (w *merger) next() error {
	if err := w.commit(w.tx); err != nil {
		return err
	}
	return w.begin()
}

// run begins a transaction, calls do, and commits. It turns a panic over a damaged file into an error.
func (w *merger) run(do func() error) error {
	return boltfile.CatchDamage("index.db", func() error {
		if err := w.begin(); err != nil {
			return err
		}
		defer func() { _ = w.tx.Rollback() }() // fails only when the transaction has ended already
		if err := do(); err != nil {
			return err
		}
		return w.commit(w.tx)
	})
}

// mergeAll writes frozen events into the stored trees.
func (w *merger) mergeAll(f frozenEvents) error {
	return w.run(func() error {
		for m, tree := range f.trees {
			if err := w.mergeTree(m, tree, f.covered); err != nil {
				return err
			}
		}
		// covered is written last: when it is on disk, so are all trees.
		return storeCovered(w.tx, f.covered)
	})
}

// mergeTree writes a merchant's frozen events into its stored tree.
func (w *merger) mergeTree(m store.MerchantKey, events *recentEvents, covered uint64) error {
	t, err := w.editTree(m)
	if err != nil {
		return err
	}
	if t.covered >= covered {
		return nil // an earlier attempt of this merge has written this tree
	}
	for _, leaf := range events.frozen.root.leaves() {
		if err := t.root.insertLeafAtRoot(leaf, t.load); err != nil {
			return err
		}
		if err := t.spend(len(leaf.node.entries)); err != nil {
			return err
		}
	}
	if err := t.addRun(&events.frozen.names); err != nil {
		return err
	}
	t.covered, t.series = covered, events.series.names()
	return t.store()
}

// treeEdit is a change of a merchant's stored trees. Nobody sees it before store.
type treeEdit struct {
	*merger
	*storedTree
	m        store.MerchantKey
	replaced []uint64       // ids of stored nodes that are not in the new tree
	freed    []freedSubtree // of stored subtrees, likewise
}

// editTree begins a change of a merchant's stored tree. The caller holds Index.storing.
func (w *merger) editTree(m store.MerchantKey) (*treeEdit, error) {
	t, err := loadTree(w.tx, m)
	if err != nil {
		return nil, err
	}
	// A change that was cut off has left nodes that are in no tree.
	err = w.deleteFrom(m, t.nextID)
	return &treeEdit{merger: w, storedTree: t, m: m}, err
}

// load loads a node, to change it. The node gets memory of its own, as it is kept until it is stored.
func (t *treeEdit) load(id uint64) (*node, error) {
	t.left -= leafEntries
	t.replaced = append(t.replaced, id)
	return loadNode(t.nodes, t.m, id, &nodeArena{})
}

// free notes a subtree for the sweeper; one of height 0 is a single node. Until store, it is part of the stored tree.
func (t *treeEdit) free(id uint64, height uint8) {
	t.freed = append(t.freed, freedSubtree{t.m, id, height})
}

// heightOf returns the height of a stored tree, which must have events. That of a leaf is 0.
func (t *treeEdit) heightOf(root *child) (h uint8, err error) {
	for id := root.id; ; h++ {
		n, err := loadNode(t.nodes, t.m, id, &nodeArena{})
		if err != nil || n.children == nil {
			return h, err
		}
		id = n.children[0].id
	}
}

// spend uses some of the transaction's budget. When none is left, it writes the changed nodes, and begins another one.
func (t *treeEdit) spend(entries int) error {
	if t.left -= entries; t.left > 0 {
		return nil
	}
	if err := t.storeNodes(); err != nil {
		return err
	}
	return t.next()
}

// storeNodes writes the changed nodes of all trees.
func (t *treeEdit) storeNodes() error {
	err := storeNodes(t, &t.root)
	for i := range t.runs {
		err = errors.Join(err, storeNodes(t, &t.runs[i].root))
	}
	return err
}

// store writes the changed nodes and the root record, and deletes the replaced nodes, or frees them when they are many.
func (t *treeEdit) store() error {
	if err := cmp.Or(t.check(), t.storeNodes()); err != nil {
		return err
	}
	if err := storeTree(t.tx, t.m, t.storedTree); err != nil {
		return err
	}
	slices.Sort(t.replaced) // so that nodes of one page are deleted one after the other
	now := min(len(t.replaced), deletedAtOnce)
	for _, id := range t.replaced[:now] {
		if err := t.nodes.Delete(nodeKey(t.m, id)); err != nil {
			return err
		}
	}
	for _, id := range t.replaced[now:] {
		t.free(id, 0)
	}
	for _, f := range t.freed {
		if err := storeFreed(t.tx, f); err != nil {
			return err
		}
	}
	return t.merger.spend(len(t.series) + leafEntries*now) // the root record takes memory too
}

// spend uses some of the transaction's budget. When none is left, it commits and begins another transaction.
func (w *merger) spend(entries int) error {
	if w.left -= entries; w.left > 0 {
		return nil
	}
	return w.next()
}

// deleteSubtree deletes a node that is in no tree, and first all below it: after a kill the rest is still found.
func (w *merger) deleteSubtree(m store.MerchantKey, id uint64, height uint8) error {
	if w.nodes.Get(nodeKey(m, id)) == nil {
		return nil // already deleted, before a kill
	}
	if height > 0 {
		n, err := loadNode(w.nodes, m, id, &nodeArena{})
		if err != nil {
			return err
		}
		for i := range n.children {
			if err := w.deleteSubtree(m, n.children[i].id, height-1); err != nil {
				return err
			}
		}
	}
	return w.deleteNode(nodeKey(m, id))
}

// deleteFrom deletes the nodes of a merchant from an id on.
func (w *merger) deleteFrom(m store.MerchantKey, id uint64) error {
	var last []byte
	for {
		k, _ := w.nodes.Cursor().Seek(nodeKey(m, id)) // a new cursor each time, as a deletion moves existing ones
		if !bytes.HasPrefix(k, m[:]) {
			return nil
		}
		if bytes.Equal(k, last) {
			return errStays
		}
		last = append(last[:0], k...)
		if err := w.deleteNode(k); err != nil {
			return err
		}
	}
}

// errStays means that bbolt finds a key after it was deleted: damage has put the keys of a page out of order.
var errStays = fmt.Errorf("index.db: %w: a key that was deleted is still there", codec.ErrCorrupt)

// deleteNode deletes a node. It spends as much as for writing one, as the deletion may load and write a page.
func (w *merger) deleteNode(key []byte) error {
	if err := w.nodes.Delete(key); err != nil {
		return err
	}
	return w.spend(leafEntries)
}

// storeNodes writes the nodes at and below c that are in memory, and releases them.
func storeNodes(t *treeEdit, c *child) error {
	if c.node == nil {
		return nil
	}
	for i := range c.node.children {
		if err := storeNodes(t, &c.node.children[i]); err != nil {
			return err
		}
	}
	c.id = t.nextID
	t.nextID++
	n := c.node
	c.node = nil
	return storeNode(t.nodes, t.m, c.id, n)
}
