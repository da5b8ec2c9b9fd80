package rank

import (
	"bytes"
	"slices"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/codec"
)

// A merge writes the frozen events of all merchants into the stored trees. It is crash safe without a log:
//
//   - A stored node never changes. Its successor is written under a new id.
//   - The new root record of a merchant is written in one transaction with the list of nodes that the new tree no longer
//     has. These are deleted from then on. So readers, and the next start after a crash, see the old tree or the new one.
//   - A merge that has more to write or to delete than maxRoom takes several transactions. When it is cut off, the next
//     merge deletes what it left behind.

// maxRoom bounds the memory of a merge: the entries that it holds before it commits. Events are merged in their order,
// so a node is seldom needed again once it was written.
const maxRoom = 250_000

// frozen is what one merge writes.
type frozen struct {
	trees   map[codec.MerchantKey]frozenTree
	covered uint64 // the events of chunks up to this seq are in the stored trees or in these
}

// frozenTree is one merchant's events.
type frozenTree struct {
	root   child
	series *dictionary
}

// merger writes the transactions of a merge, one after the other.
type merger struct {
	db     *bolt.DB
	room   int // of each transaction, in entries
	commit func(*bolt.Tx) error

	tx    *bolt.Tx
	nodes *bolt.Bucket
	left  int // what is left of the room
}

func newMerger(db *bolt.DB, commit func(*bolt.Tx) error) *merger {
	return &merger{db: db, room: maxRoom, commit: commit}
}

func (w *merger) begin() error {
	tx, err := w.db.Begin(true)
	if err != nil {
		return err
	}
	w.tx, w.nodes, w.left = tx, tx.Bucket(bucketNodes), w.room
	w.nodes.FillPercent = 1 // stored nodes do not grow, and new ones have higher keys
	return nil
}

// next commits the transaction and begins another.
func (w *merger) next() error {
	if err := w.commit(w.tx); err != nil {
		return err
	}
	return w.begin()
}

// mergeAll writes what is frozen into the stored trees.
func (w *merger) mergeAll(f frozen) error {
	if err := w.begin(); err != nil {
		return err
	}
	defer func() { _ = w.tx.Rollback() }() // fails only when the transaction has ended already
	if err := w.sweepAll(); err != nil {
		return err
	}
	for m, tree := range f.trees {
		if err := w.mergeTree(m, tree, f.covered); err != nil {
			return err
		}
	}
	// This is the last write: when it is on disk, so are all the others.
	if err := storeCovered(w.tx, f.covered); err != nil {
		return err
	}
	return w.commit(w.tx)
}

// mergeTree writes a merchant's frozen events into its stored tree.
func (w *merger) mergeTree(m codec.MerchantKey, events frozenTree, covered uint64) error {
	t, err := loadTree(w.tx, m)
	if err != nil || t.covered >= covered { // an earlier attempt of this merge has written this tree
		return err
	}
	if err := w.deleteFrom(m, t.nextID); err != nil {
		return err
	}
	var replaced []uint64
	load := func(id uint64) (*node, error) {
		w.left -= leafEntries
		replaced = append(replaced, id)
		return loadNode(w.nodes, m, id, &nodeArena{}) // memory of its own, as the node changes and is kept until it is stored
	}
	for _, leaf := range events.root.leaves() {
		if err := t.root.insertLeafAtRoot(leaf, load); err != nil {
			return err
		}
		if w.left -= len(leaf.node.entries); w.left > 0 {
			continue
		}
		if err := w.storeNodes(t, m, &t.root); err != nil {
			return err
		}
		if err := w.next(); err != nil {
			return err
		}
	}
	if err := w.storeNodes(t, m, &t.root); err != nil {
		return err
	}
	t.covered, t.series = covered, events.series.names()
	if err := storeTree(w.tx, m, t); err != nil {
		return err
	}
	slices.Sort(replaced) // so that neighbours are deleted together
	if err := storeReplaced(w.tx, m, replaced); err != nil {
		return err
	}
	if err := w.spend(len(t.series) + len(replaced)); err != nil { // the records take memory too
		return err
	}
	return w.sweep(m)
}

// spend uses some of the transaction's room. When none is left it begins another transaction.
func (w *merger) spend(entries int) error {
	if w.left -= entries; w.left > 0 {
		return nil
	}
	return w.next()
}

// sweepAll deletes the replaced nodes that earlier merges, which were cut off, did not delete.
func (w *merger) sweepAll() error {
	for {
		k, _ := w.tx.Bucket(bucketReplaced).Cursor().First()
		if k == nil {
			return nil
		}
		if err := w.sweep(codec.MerchantKey(k)); err != nil {
			return err
		}
	}
}

// sweep deletes the nodes that the last merge of a merchant's tree replaced.
func (w *merger) sweep(m codec.MerchantKey) error {
	replaced, err := loadReplaced(w.tx, m)
	if err != nil || len(replaced) == 0 {
		return err
	}
	for _, id := range replaced {
		if err := w.deleteNode(nodeKey(m, id)); err != nil {
			return err
		}
	}
	return storeReplaced(w.tx, m, nil)
}

// deleteFrom deletes the nodes from an id on, which a merge wrote that was cut off.
func (w *merger) deleteFrom(m codec.MerchantKey, id uint64) error {
	for from := nodeKey(m, id); ; {
		k, _ := w.nodes.Cursor().Seek(from) // a new cursor each time, as a deletion moves cursors
		if !bytes.HasPrefix(k, m[:]) {
			return nil
		}
		if err := w.deleteNode(k); err != nil {
			return err
		}
	}
}

// deleteNode deletes a node. It uses the room of a leaf, as the deletion may load and write a page.
func (w *merger) deleteNode(key []byte) error {
	if err := w.nodes.Delete(key); err != nil {
		return err
	}
	return w.spend(leafEntries)
}

// storeNodes writes the nodes at and below c that are in memory, and releases them.
func (w *merger) storeNodes(t *tree, m codec.MerchantKey, c *child) error {
	if c.node == nil {
		return nil
	}
	for i := range c.node.children {
		if err := w.storeNodes(t, m, &c.node.children[i]); err != nil {
			return err
		}
	}
	c.id = t.nextID
	t.nextID++
	n := c.node
	c.node = nil
	return storeNode(w.nodes, m, c.id, n)
}
