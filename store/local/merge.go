package local

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/dgraph-io/badger/v4"
)

// A merge takes the frozen events of all merchants into the stored trees. Stored nodes never
// change: a merge writes changed nodes under new ids, and last the root record that names them, so
// readers and crashes see the old tree or the new one. The nodes that were replaced are listed in
// the root record as garbage; the tree's next merge, when nobody reads them any more, deletes them.
// Ids that a merge used before it was cut off are used again by the next.

const (
	// mergeRoom bounds the memory of a merge: the entries that it has in memory before it writes
	// them. Events are merged in their order, so a node that was written is seldom needed again.
	mergeRoom = 250_000
	// mergeBytes is when the writes of small trees are committed together.
	mergeBytes = 1 << 20
)

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
	w := &merger{db: x.db, clock: x.clock}
	trees, err := w.mergeAll(f)
	if err != nil {
		return err
	}
	if err := w.commit(); err != nil {
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

// merger makes the writes of a merge.
type merger struct {
	db     *badger.DB
	clock  *clock
	writes []write
	bytes  int
}

// write is a key and its new value; nil deletes it.
type write struct{ key, value []byte }

func (w *merger) put(key, value []byte) {
	w.writes = append(w.writes, write{key, value})
	w.bytes += len(key) + len(value)
}

// mergeAll takes what is frozen into the stored trees, which it returns, and leaves the last writes
// to be committed.
func (w *merger) mergeAll(f frozen) (map[merchantKey]*tree, error) {
	trees := make(map[merchantKey]*tree, len(f.recent))
	for m, r := range f.recent {
		t, err := w.merge(m, r, f.covered)
		if err != nil {
			return nil, err
		}
		trees[m] = t
	}
	// How far the stored trees have come is the last write: with it, all the others are there.
	w.put([]byte{prefixCheckpoint}, binary.BigEndian.AppendUint64(nil, f.covered))
	return trees, nil
}

// merge takes a merchant's frozen events into its stored tree, and ends with the root record. It
// returns the new tree.
func (w *merger) merge(m merchantKey, r *recent, covered uint64) (*tree, error) {
	for _, id := range r.stored.garbage {
		w.put(appendNodeKey(nil, m, id), nil)
	}
	t := &tree{
		root:    r.stored.root,
		nextID:  r.stored.nextID,
		applied: covered,
		garbage: slices.Clone(r.stored.lists), // the old root record names them, and stands until it is replaced
		series:  r.series.names(),
	}
	// The root's counts are changed in place; readers still look at the old ones.
	t.root.counts = slices.Clone(t.root.counts)
	txn := w.db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	room := mergeRoom
	load := func(id uint64) (*node, error) {
		room -= leafEntries
		t.garbage = append(t.garbage, id)
		return loadNode(txn, m, id)
	}
	err := r.frozen.each(func(e entry) error {
		if err := t.root.insertAtRoot(e, load); err != nil {
			return err
		}
		if room--; room > 0 {
			return nil
		}
		room = mergeRoom
		w.storeNodes(t, m, &t.root)
		return w.commit()
	})
	if err != nil {
		return nil, err
	}
	w.storeNodes(t, m, &t.root)
	w.storeGarbage(t, m)
	w.put(appendRootKey(nil, m), t.encode(nil))
	if w.bytes >= mergeBytes {
		return t, w.commit()
	}
	return t, nil
}

// storeGarbage writes the lists of what the root record does not hold of a tree's garbage.
func (w *merger) storeGarbage(t *tree, m merchantKey) {
	if len(t.garbage) > garbageInRoot {
		for ids := range slices.Chunk(t.garbage[garbageInRoot:], garbageInList) {
			w.put(appendNodeKey(nil, m, t.nextID), appendIDs(nil, ids))
			t.lists = append(t.lists, t.nextID)
			t.nextID++
		}
	}
}

// storeNodes writes the nodes that are in memory at and below c, and lets go of them.
func (w *merger) storeNodes(t *tree, m merchantKey, c *child) {
	if c.node == nil {
		return
	}
	for i := range c.node.children {
		w.storeNodes(t, m, &c.node.children[i])
	}
	c.id = t.nextID
	t.nextID++
	w.put(appendNodeKey(nil, m, c.id), c.node.encode(nil))
	c.node = nil
}

// commit makes the writes in their order, in transactions that Badger takes. The largest write is an inner node with
// all series: 64 children with a thousand counts, below 400 KB.
func (w *merger) commit() error {
	maxBytes, maxCount := int(w.db.MaxBatchSize()/2), int(w.db.MaxBatchCount()/2)
	for len(w.writes) > 0 {
		txn := w.db.NewTransactionAt(math.MaxUint64, true)
		n, size := 0, 0
		for ; n < len(w.writes) && n < maxCount; n++ {
			key, value := w.writes[n].key, w.writes[n].value
			if size += len(key) + len(value); n > 0 && size > maxBytes {
				break
			}
			var err error
			if value == nil {
				err = txn.Delete(key)
			} else {
				err = txn.Set(key, value)
			}
			if err != nil {
				txn.Discard()
				return err
			}
		}
		if err := txn.CommitAt(w.clock.next(), nil); err != nil {
			return err
		}
		w.writes = w.writes[n:]
	}
	w.writes, w.bytes = nil, 0
	return nil
}
