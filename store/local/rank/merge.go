package rank

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"

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

// txBudget bounds the memory of a merge: it is how many entries one transaction may load, write or delete. Events are
// merged in the order of time, so a node is seldom needed again once it is written. A compaction has a smaller budget, as
// merges wait for its transactions.
const (
	txBudget         = 250_000
	compactionBudget = 125_000

	blockEntries = 3 * leafEntries // what a block of a segment takes of the budget: it is three times as large as a leaf

	// deletedAtOnce is how many nodes the transaction that has replaced them deletes. Each may be on a page of its own, which is kept in
	// memory and written again. The compactor deletes the others: backdated events may replace all leaves of a large tree.
	deletedAtOnce = txBudget / leafEntries
)

// frozenEvents are the events that one merge writes.
type frozenEvents struct {
	trees   map[codec.MerchantKey]*recentEvents
	covered uint64 // the events of chunks up to this seq are in the stored trees or in these
}

// merger writes the transactions of a merge, one after the other.
type merger struct {
	ctx    context.Context // ends the merge between two transactions
	db     *bolt.DB
	budget int // of each transaction, in entries
	commit func(*bolt.Tx) error

	tx     *bolt.Tx
	nodes  *bolt.Bucket
	blocks *bolt.Bucket // of segments
	left   int          // of the budget of tx
}

func newMerger(db *bolt.DB, commit func(*bolt.Tx) error) *merger {
	return &merger{ctx: context.Background(), db: db, budget: txBudget, commit: commit}
}

func (w *merger) begin() error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	tx, err := w.db.Begin(true)
	if err != nil {
		return err
	}
	w.tx, w.nodes, w.blocks, w.left = tx, tx.Bucket(bucketNodes), tx.Bucket(bucketBlocks), w.budget
	// No need to leave space in pages: stored nodes and blocks do not grow, and new ones have higher keys.
	w.nodes.FillPercent, w.blocks.FillPercent = 1, 1
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
		if err := w.sweepSegments(byMerge); err != nil {
			return err
		}
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
func (w *merger) mergeTree(m codec.MerchantKey, events *recentEvents, covered uint64) error {
	t, err := w.editTree(m)
	if err != nil {
		return err
	}
	if t.covered >= covered {
		return nil // an earlier attempt of this merge has written this tree
	}
	added, err := w.addSegments(m, events.frozen.segments)
	if err != nil {
		return err
	}
	for _, leaf := range events.frozen.root.leaves() {
		if err := t.root.insertLeafAtRoot(leaf, t.load); err != nil {
			return err
		}
		if err := t.spend(len(leaf.node.entries)); err != nil {
			return err
		}
	}
	if err := w.useSegments(m, added); err != nil {
		return err
	}
	t.covered, t.series = covered, events.series.names()
	return t.store()
}

// treeEdit is a change of a merchant's stored tree. Nobody sees it before store. The merchant's segments are changed directly
// before store, so that both are one transaction.
type treeEdit struct {
	*merger
	*storedTree
	m        codec.MerchantKey
	replaced []uint64 // ids of stored nodes that are not in the new tree
}

// editTree begins a change of a merchant's stored tree. The caller holds Index.storing.
func (w *merger) editTree(m codec.MerchantKey) (*treeEdit, error) {
	t, err := loadTree(w.tx, m)
	if err != nil {
		return nil, err
	}
	// A change that was cut off has left nodes that are in no tree.
	err = w.deleteFrom(bucketNodes, nodeKey(m, t.nextID), m[:], leafEntries)
	return &treeEdit{merger: w, storedTree: t, m: m}, err
}

// load loads a node, to change it. The node gets memory of its own, as it is kept until it is stored.
func (t *treeEdit) load(id uint64) (*node, error) {
	t.left -= leafEntries
	t.replaced = append(t.replaced, id)
	return loadNode(t.nodes, t.m, id, &nodeArena{})
}

// free hands a stored subtree that is no longer in the tree to the compactor, which deletes it. With height 0 it is one node.
func (t *treeEdit) free(id uint64, height uint8) error {
	return storeFreed(t.tx, freedSubtree{t.m, id, height})
}

// height returns the height of the stored tree, which must have events. That of a leaf is 0.
func (t *treeEdit) height() (h uint8, err error) {
	for id := t.root.id; ; h++ {
		n, err := loadNode(t.nodes, t.m, id, &nodeArena{})
		if err != nil || n.children == nil {
			return h, err
		}
		id = n.children[0].id
	}
}

// spend uses some of the transaction's budget. When none is left, it writes the changed nodes and begins another transaction.
func (t *treeEdit) spend(entries int) error {
	if t.left -= entries; t.left > 0 {
		return nil
	}
	if err := t.storeNodes(&t.root); err != nil {
		return err
	}
	return t.next()
}

// store writes the changed nodes and the root record, and deletes the replaced nodes, or frees them when they are many.
func (t *treeEdit) store() error {
	if err := t.storeNodes(&t.root); err != nil {
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
		if err := t.free(id, 0); err != nil {
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

// deleteSubtree deletes a node that is in no tree, and all below it. The node is deleted last, so that after a kill the
// others are still found.
func (w *merger) deleteSubtree(m codec.MerchantKey, id uint64, height uint8) error {
	key := nodeKey(m, id)
	if w.nodes.Get(key) == nil {
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
	return w.deleteKey(w.nodes, key, leafEntries)
}

// deleteFrom deletes the keys of a bucket with this prefix, from a key on. Each costs as much as so many entries.
func (w *merger) deleteFrom(bucket, from, prefix []byte, cost int) error {
	var last []byte
	for {
		k, _ := w.tx.Bucket(bucket).Cursor().Seek(from) // a new cursor each time, as a deletion moves existing ones
		if !bytes.HasPrefix(k, prefix) {
			return nil
		}
		if bytes.Equal(k, last) {
			return errStays
		}
		last = append(last[:0], k...)
		if err := w.deleteKey(w.tx.Bucket(bucket), k, cost); err != nil {
			return err
		}
	}
}

// errStays means that bbolt finds a key after it was deleted: damage has put the keys of a page out of order.
var errStays = fmt.Errorf("index.db: %w: a key that was deleted is still there", codec.ErrCorrupt)

// deleteKey deletes a key. It spends as much as for writing the value, as the deletion may load and write a page.
func (w *merger) deleteKey(bucket *bolt.Bucket, key []byte, cost int) error {
	if err := bucket.Delete(key); err != nil {
		return err
	}
	return w.spend(cost)
}

// storeNodes writes the nodes at and below c that are in memory, and releases them.
func (t *treeEdit) storeNodes(c *child) error {
	if c.node == nil {
		return nil
	}
	for i := range c.node.children {
		if err := t.storeNodes(&c.node.children[i]); err != nil {
			return err
		}
	}
	c.id = t.nextID
	t.nextID++
	n := c.node
	c.node = nil
	return storeNode(t.nodes, t.m, c.id, n)
}

// addSegments writes new stored segments with the events of those in memory. They are unused until useSegments.
func (w *merger) addSegments(m codec.MerchantKey, memory []*segment) (added []*segment, err error) {
	byTag := map[uint32][]*segment{}
	for _, s := range memory {
		byTag[s.tag] = append(byTag[s.tag], s)
	}
	for _, group := range byTag {
		s := mergedSegment(group)
		if s.id, err = w.newSegment(m, byMerge); err != nil {
			return nil, err
		}
		if s.n, err = mergeSegments(memoryReaders(group), w.putBlock(m, s.id)); err != nil {
			return nil, err
		}
		added = append(added, s)
	}
	return added, nil
}

// newSegment returns the id of a new segment, and marks the segment as unused.
func (w *merger) newSegment(m codec.MerchantKey, by byte) (id uint64, err error) {
	r, err := loadSegments(w.tx, m)
	if err != nil {
		return 0, err
	}
	id = r.nextID
	r.nextID++
	return id, errors.Join(storeSegments(w.tx, m, r), markUnused(w.tx, m, id, by))
}

// putBlock returns a function that stores the blocks of a segment.
func (w *merger) putBlock(m codec.MerchantKey, id uint64) putBlock {
	return func(kind uint8, i int, b []byte) error {
		if err := storeBlock(w.blocks, m, id, kind, i, b); err != nil {
			return err
		}
		return w.spend(blockEntries)
	}
}

// useSegments adds segments that addSegments has written to those that are used.
func (w *merger) useSegments(m codec.MerchantKey, added []*segment) error {
	if added == nil {
		return nil
	}
	r, err := loadSegments(w.tx, m)
	if err != nil {
		return err
	}
	for _, s := range added {
		r.segments = append(r.segments, s)
		if err := w.tx.Bucket(bucketUnused).Delete(segmentKey(m, s.id)); err != nil {
			return err
		}
	}
	return storeSegments(w.tx, m, r)
}

// sweepSegments deletes the unused segments that a merge, or a compaction, has marked.
func (w *merger) sweepSegments(by byte) error {
	for _, segment := range unusedSegments(w.tx, by) {
		if err := w.deleteFrom(bucketBlocks, segment, segment, blockEntries); err != nil {
			return err
		}
		if err := w.tx.Bucket(bucketUnused).Delete(segment); err != nil {
			return err
		}
	}
	return nil
}
