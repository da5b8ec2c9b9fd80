package local

import (
	"bytes"
	"encoding/binary"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// A merge takes the frozen events of all merchants into the stored trees. A merchant's tree changes in one transaction:
// its last new nodes, the root record that names them, and the deletion of the nodes that they replace. So
// readers and crashes see the old tree or the new one. Other new nodes may be committed before, where nobody
// finds them; when a merge is cut off, the next deletes them.

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
		r.frozen, r.frozenTo, r.active = r.active, x.covered, child{}
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
	w := &merger{db: x.db, room: mergeRoom}
	trees, err := w.mergeAll(f)
	if err != nil {
		return err
	}
	if err := w.tx.Commit(); err != nil {
		return err
	}

	x.mu.Lock()
	defer x.mu.Unlock()
	for m, r := range f.recent {
		r.stored, r.frozen = trees[m], child{}
		if r.active.node == nil {
			delete(x.recent, m)
		}
	}
	return nil
}

// merger makes the writes of a merge, in one transaction after the other.
type merger struct {
	db   *bolt.DB
	room int // of a transaction, in entries

	tx    *bolt.Tx
	nodes *bolt.Bucket
	left  int // of the room
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

// makeRoom commits where the transaction's room is taken, and goes on in another.
func (w *merger) makeRoom() error {
	if w.left > 0 {
		return nil
	}
	if err := w.tx.Commit(); err != nil {
		return err
	}
	return w.begin()
}

// mergeAll takes what is frozen into the stored trees, which it returns, and leaves the last
// transaction to be committed.
func (w *merger) mergeAll(f frozen) (trees map[merchantKey]*tree, err error) {
	if err := w.begin(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = w.tx.Rollback() // fails only where a commit that failed has done it already
		}
	}()
	trees = make(map[merchantKey]*tree, len(f.recent))
	for m, r := range f.recent {
		if err := w.makeRoom(); err != nil {
			return nil, err
		}
		if trees[m], err = w.merge(m, r, f.covered); err != nil {
			return nil, err
		}
	}
	// How far the stored trees have come is the last write: with it, all the others are there.
	return trees, w.tx.Bucket(bucketMeta).Put(keyCovered, binary.BigEndian.AppendUint64(nil, f.covered))
}

// merge takes a merchant's frozen events into its stored tree, and returns the new tree.
func (w *merger) merge(m merchantKey, r *recent, covered uint64) (*tree, error) {
	t := &tree{root: r.stored.root, nextID: r.stored.nextID, applied: covered, series: r.series.names()}
	if err := w.deleteLeftovers(m, t.nextID); err != nil {
		return nil, err
	}
	var replaced []uint64
	load := func(id uint64) (*node, error) {
		w.left -= leafEntries
		replaced = append(replaced, id)
		return loadNode(w.nodes, m, id)
	}
	// The root's counts are changed in place, and a merge that fails leaves the stored tree as it was.
	t.root.counts = slices.Clone(t.root.counts)
	err := r.frozen.eachLeaf(func(leaf *child) error {
		if err := t.root.insertLeafAtRoot(leaf, load); err != nil {
			return err
		}
		if w.left -= len(leaf.node.entries); w.left > 0 {
			return nil
		}
		if err := w.storeNodes(t, m, &t.root); err != nil {
			return err
		}
		return w.makeRoom()
	})
	if err != nil {
		return nil, err
	}
	if err := w.storeNodes(t, m, &t.root); err != nil {
		return nil, err
	}
	for _, id := range replaced {
		if err := w.nodes.Delete(nodeKey(m, id)); err != nil {
			return nil, err
		}
	}
	w.left -= len(t.series)
	return t, w.tx.Bucket(bucketRoots).Put(m[:], seal(t.encode(nil)))
}

// deleteLeftovers deletes the nodes of a merge that was cut off: their ids are from next on.
func (w *merger) deleteLeftovers(m merchantKey, next uint64) error {
	var keys [][]byte // a cursor must not be used beside deletions
	c := w.nodes.Cursor()
	for k, _ := c.Seek(nodeKey(m, next)); bytes.HasPrefix(k, m[:]); k, _ = c.Next() {
		keys = append(keys, bytes.Clone(k))
	}
	for _, k := range keys {
		if err := w.nodes.Delete(k); err != nil {
			return err
		}
	}
	return nil
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
	b := seal(c.node.encode(nil))
	c.node = nil
	return w.nodes.Put(nodeKey(m, c.id), b)
}
