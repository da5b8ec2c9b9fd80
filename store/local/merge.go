package local

import (
	"bytes"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// A merge takes the frozen events of all merchants into the stored trees. A stored node never changes: its successor is
// written under a new id. The transaction that replaces a merchant's root record lists the nodes that the new tree does
// without, and they are deleted from then on. So readers and crashes see the old tree or the new one. Where a merge has more
// to write or to delete than room, it is several transactions; where it is cut off, the next merge deletes what
// it left.

// mergeRoom bounds the memory of a merge: the entries that it has in memory before it commits them. Events are
// merged in their order, so a node that was written is seldom needed again.
const mergeRoom = 250_000

// frozen is what one merge takes.
type frozen struct {
	recent  map[merchantKey]*recent
	covered uint64 // chunks up to this seq are in the stored trees or here
}

// freeze sets apart what is in memory for the next merge. No other merge may be running.
func (x *index) freeze() frozen {
	x.mu.Lock()
	defer x.mu.Unlock()
	f := frozen{recent: make(map[merchantKey]*recent, len(x.recent)), covered: x.covered}
	for m, r := range x.recent {
		if r.active.node == nil {
			delete(x.recent, m) // a replay found that the stored tree has it all
			continue
		}
		r.frozen, r.active = r.active, child{}
		f.recent[m] = r
	}
	x.entries = 0
	return f
}

// merge takes what is frozen into the stored trees. Applying and reading go on beside it.
func (x *index) merge(f frozen) error {
	if len(f.recent) == 0 {
		return nil
	}
	w := newMerger(x.db, x.commit)
	if err := catchDamage("index.db", func() error { return w.mergeAll(f) }); err != nil {
		return err
	}

	x.mu.Lock()
	defer x.mu.Unlock()
	for m, r := range f.recent {
		r.covered, r.frozen = f.covered, child{}
		if r.active.node == nil {
			delete(x.recent, m)
		}
	}
	return nil
}

// merger makes the writes of a merge, in one transaction after the other.
type merger struct {
	db     *bolt.DB
	room   int // of a transaction, in entries
	commit func(*bolt.Tx) error

	tx    *bolt.Tx
	nodes *bolt.Bucket
	left  int // of the room
}

func newMerger(db *bolt.DB, commit func(*bolt.Tx) error) *merger {
	return &merger{db: db, room: mergeRoom, commit: commit}
}

func (w *merger) begin() error {
	tx, err := w.db.Begin(true)
	if err != nil {
		return err
	}
	w.tx, w.nodes, w.left = tx, tx.Bucket(bucketNodes), w.room
	w.nodes.FillPercent = 1 // stored nodes do not grow, and new ones come behind them
	return nil
}

// next commits the transaction and goes on in another.
func (w *merger) next() error {
	if err := w.commit(w.tx); err != nil {
		return err
	}
	return w.begin()
}

// mergeAll takes what is frozen into the stored trees.
func (w *merger) mergeAll(f frozen) error {
	if err := w.begin(); err != nil {
		return err
	}
	defer func() { _ = w.tx.Rollback() }() // fails only where it was committed, or has rolled itself back
	if err := w.sweepAll(); err != nil {
		return err
	}
	for m, r := range f.recent {
		if err := w.mergeTree(m, r, f.covered); err != nil {
			return err
		}
	}
	// How far the stored trees have come is the last write: with it, all the others are there.
	if err := storeCovered(w.tx, f.covered); err != nil {
		return err
	}
	return w.commit(w.tx)
}

// mergeTree takes a merchant's frozen events into its stored tree.
func (w *merger) mergeTree(m merchantKey, r *recent, covered uint64) error {
	t, err := loadTree(w.tx, m)
	if err != nil || t.covered >= covered { // a merge that failed had come past this tree
		return err
	}
	if err := w.deleteFrom(m, t.nextID); err != nil {
		return err
	}
	var replaced []uint64
	load := func(id uint64) (*node, error) {
		w.left -= leafEntries
		replaced = append(replaced, id)
		return loadNode(w.nodes, m, id, &nodeArena{}) // of its own: it is changed, and kept until it is stored
	}
	for _, leaf := range r.frozen.leaves() {
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
	t.covered, t.series = covered, r.series.names()
	if err := storeTree(w.tx, m, t); err != nil {
		return err
	}
	slices.Sort(replaced) // neighbours are deleted together
	if err := storeReplaced(w.tx, m, replaced); err != nil {
		return err
	}
	if err := w.spend(len(t.series) + len(replaced)); err != nil { // the records take memory, too
		return err
	}
	return w.sweep(m)
}

// spend takes some of the transaction's room, and goes on in another where none is left.
func (w *merger) spend(entries int) error {
	if w.left -= entries; w.left > 0 {
		return nil
	}
	return w.next()
}

// sweepAll deletes what merges replaced that were cut off after it.
func (w *merger) sweepAll() error {
	for {
		k, _ := w.tx.Bucket(bucketReplaced).Cursor().First()
		if k == nil {
			return nil
		}
		if err := w.sweep(merchantKey(k)); err != nil {
			return err
		}
	}
}

// sweep deletes the nodes that the last merge of a merchant's tree replaced.
func (w *merger) sweep(m merchantKey) error {
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

// deleteFrom deletes the nodes from an id on: those of a merge that was cut off.
func (w *merger) deleteFrom(m merchantKey, id uint64) error {
	for from := nodeKey(m, id); ; {
		k, _ := w.nodes.Cursor().Seek(from) // anew: a deletion moves what a cursor is at
		if !bytes.HasPrefix(k, m[:]) {
			return nil
		}
		if err := w.deleteNode(k); err != nil {
			return err
		}
	}
}

// deleteNode takes the room of a page, which may be in memory and written for it.
func (w *merger) deleteNode(key []byte) error {
	if err := w.nodes.Delete(key); err != nil {
		return err
	}
	return w.spend(leafEntries)
}

// storeNodes writes the nodes that are in memory at and below c, and lets go of them.
func (w *merger) storeNodes(t *tree, m merchantKey, c *child) error {
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
