package local

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"
)

// index keeps a counted tree (tree.go) for each merchant. It trails the commits: events are
// committed as chunks, acknowledged, and then applied to the trees by one goroutine, in memory. From time to
// time a checkpoint writes the changed nodes. What was applied after the last checkpoint is applied
// again from the chunks when the engine starts, so a crash loses nothing and counts nothing twice.
//
// Stored nodes never change: a checkpoint writes changed nodes under new ids, then the root record
// that names them. The nodes they replace are listed in that record as garbage and deleted by the tree's next checkpoint.
type index struct {
	db    *badger.DB
	clock *clock

	mu    sync.RWMutex          // readers hold it while they walk a tree
	trees map[merchantKey]*tree // trees that changed since the last checkpoint
	nodes int                   // nodes in memory, in all trees

	queue       chan appendix
	checkpoints chan struct{} // asks for a checkpoint now
	done        chan struct{} // closed when the goroutine has ended

	progress sync.Mutex
	advanced sync.Cond // applied or err changed
	applied  uint64    // chunks up to this seq are in the trees
	err      error     // why nothing is applied any more
}

// appendix is what one commit adds: chunks in ascending order.
type appendix struct {
	chunks  []chunk
	release func() // called when the chunks' memory is no longer needed
}

type chunk struct {
	seq  uint64
	data []byte
}

const (
	// A checkpoint is due after this time, or when this many nodes are in memory. Half a million
	// events, the most that come in that time, are replayed in less than a second.
	checkpointInterval = 5 * time.Second
	checkpointNodes    = 8192

	// indexQueue is how many commits may be waiting to be applied. Applying is about ten times as
	// fast as committing, so the queue is empty but for moments.
	indexQueue = 16

	// maxSeries bounds what a merchant's root record and inner nodes hold, whatever names visitors
	// make up. Events of further series count as series 0: listed correctly, but slower (overflow.go).
	maxSeries = 1024
)

// otherSeries stands for all series beyond maxSeries.
const otherSeries = 0

// tree is a merchant's index in memory.
type tree struct {
	root    child
	nextID  uint64   // ids from here on were never used
	applied uint64   // chunks up to this seq are in the stored tree
	garbage []uint64 // stored nodes that this root no longer reaches
	series  []string // tag and name (as in a chunk), by series; 0 is otherSeries

	ids      map[string]uint32 // series by tag and name; nil while the tree is only read
	replaced []uint64          // stored nodes that were replaced since the root record was written
}

// openIndex opens the index and applies the chunks that the last checkpoint does not cover.
func openIndex(db *badger.DB, clock *clock) (*index, error) {
	x := &index{db: db, clock: clock, trees: map[merchantKey]*tree{}, queue: make(chan appendix, indexQueue), checkpoints: make(chan struct{}), done: make(chan struct{})}
	x.advanced.L = &x.progress
	if err := x.replay(); err != nil {
		return nil, err
	}
	go x.run()
	return x, nil
}

// push hands over what a commit added. It blocks while too much is waiting.
func (x *index) push(a appendix) { x.queue <- a }

// close applies what was pushed, writes a checkpoint and ends. Nothing may be pushed any more.
func (x *index) close() error {
	close(x.queue)
	<-x.done
	return x.failure()
}

func (x *index) failure() error {
	x.progress.Lock()
	defer x.progress.Unlock()
	return x.err
}

// wait returns when the chunks up to seq are in the trees.
func (x *index) wait(seq uint64) error {
	x.progress.Lock()
	defer x.progress.Unlock()
	for x.applied < seq && x.err == nil {
		x.advanced.Wait()
	}
	return x.err
}

func (x *index) advance(seq uint64, err error) {
	x.progress.Lock()
	if err != nil && x.err == nil {
		x.err = fmt.Errorf("event index: %w", err)
	}
	x.applied = max(x.applied, seq)
	x.progress.Unlock()
	x.advanced.Broadcast()
}

func (x *index) run() {
	defer close(x.done)
	ticker := time.NewTicker(checkpointInterval)
	defer ticker.Stop()
	due := false
	for {
		select {
		case <-ticker.C:
			due = true
		case <-x.checkpoints:
			due = true
		case a, open := <-x.queue:
			if !open {
				x.step(appendix{}, true)
				return
			}
			x.step(a, false)
		}
		if due || x.nodes >= checkpointNodes {
			x.step(appendix{}, true)
			due = false
		}
	}
}

// step applies an appendix and, if asked to, writes a checkpoint. After a failure it only lets go
// of memory: the chunks are safe, and the next start applies them.
func (x *index) step(a appendix, checkpoint bool) {
	if a.release != nil {
		defer a.release()
	}
	if x.failure() != nil {
		return
	}
	if len(a.chunks) > 0 {
		err := x.apply(a.chunks)
		x.advance(a.chunks[len(a.chunks)-1].seq, err)
		if err != nil {
			return
		}
	}
	if checkpoint {
		if err := x.checkpoint(); err != nil {
			x.advance(0, err)
		}
	}
}

// apply adds the chunks' events to the trees.
func (x *index) apply(chunks []chunk) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	txn := x.db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	var m merchantKey
	var t *tree
	var load func(id uint64) (*node, error)
	for _, c := range chunks {
		d := decoder{b: c.data}
		for i := uint16(0); len(d.b) > 0; i++ {
			e := d.next()
			if err := d.err("chunk"); err != nil {
				return err
			}
			if t == nil || e.merchant != m {
				m = e.merchant
				var err error
				if t, err = x.changing(txn, m); err != nil {
					return err
				}
				load = func(id uint64) (*node, error) {
					x.nodes++
					t.replaced = append(t.replaced, id)
					return loadNode(txn, m, id)
				}
			}
			if c.seq <= t.applied {
				continue // a replay of what a checkpoint already covers
			}
			at := entry{entryKey{e.time, position{c.seq, i}}, t.seriesID(e.series)}
			if err := t.insert(at, load); err != nil {
				return err
			}
		}
	}
	return nil
}

// changing returns a merchant's tree to be changed; x.mu is held.
func (x *index) changing(txn *badger.Txn, m merchantKey) (*tree, error) {
	if t := x.trees[m]; t != nil {
		return t, nil
	}
	t, err := loadTree(txn, m)
	if err != nil {
		return nil, err
	}
	if t == nil {
		t = &tree{root: child{node: &node{}}, nextID: 1, series: []string{""}}
		x.nodes++
	}
	t.ids = make(map[string]uint32, len(t.series))
	for id, name := range t.series {
		t.ids[name] = uint32(id)
	}
	x.trees[m] = t
	return t, nil
}

// seriesID returns the number of a series, and gives it one when it is new.
func (t *tree) seriesID(name []byte) uint32 {
	if id, ok := t.ids[string(name)]; ok {
		return id
	}
	if len(t.series) > maxSeries {
		return otherSeries
	}
	id := uint32(len(t.series))
	t.series = append(t.series, string(name))
	t.ids[t.series[id]] = id
	return id
}

func (t *tree) insert(e entry, load func(id uint64) (*node, error)) error {
	right, err := t.root.insert(e, load)
	if err != nil || right == nil {
		return err
	}
	t.root = newChild(&node{children: append(make([]child, 0, innerChildren), t.root, *right)})
	return nil
}

// write is a key and its new value; nil deletes it.
type write struct{ key, value []byte }

// checkpoint writes the changed trees and forgets them.
func (x *index) checkpoint() error {
	if len(x.trees) == 0 {
		return nil
	}
	if err := x.commit(x.writes()); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.trees = map[merchantKey]*tree{}
	x.nodes = 0
	return nil
}

// writes returns the writes of a checkpoint, in their order.
func (x *index) writes() (writes []write) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for m, t := range x.trees {
		if t.root.node == nil {
			continue // a replay found that the stored tree has it all
		}
		writes = t.store(writes, m, x.applied)
	}
	// The record of how far the index has come is the last: with it, all the others are there.
	return append(writes, write{[]byte{prefixCheckpoint}, binary.BigEndian.AppendUint64(nil, x.applied)})
}

// commit makes the writes in their order, in transactions that stay well below Badger's limit.
func (x *index) commit(writes []write) error {
	maxBytes, maxCount := x.db.MaxBatchSize()/2, int(x.db.MaxBatchCount()/2)
	for len(writes) > 0 {
		txn := x.db.NewTransactionAt(math.MaxUint64, true)
		n, size := 0, int64(0)
		for ; n < len(writes) && n < maxCount && size < maxBytes; n++ {
			w := writes[n]
			size += int64(len(w.key) + len(w.value))
			set := func() error { return txn.Set(w.key, w.value) }
			if w.value == nil {
				set = func() error { return txn.Delete(w.key) }
			}
			if err := set(); err != nil {
				txn.Discard()
				return err
			}
		}
		if err := txn.CommitAt(x.clock.next(), nil); err != nil {
			return err
		}
		writes = writes[n:]
	}
	return nil
}

// store appends the writes that bring the stored tree up to the one in memory.
func (t *tree) store(writes []write, m merchantKey, applied uint64) []write {
	for _, id := range t.garbage {
		writes = append(writes, write{key: appendNodeKey(nil, m, id)})
	}
	t.garbage, t.replaced = t.replaced, nil
	t.applied = applied
	writes = t.storeNode(writes, m, &t.root)
	return append(writes, write{appendRootKey(nil, m), t.encode(nil)})
}

func (t *tree) storeNode(writes []write, m merchantKey, c *child) []write {
	for i := range c.node.children {
		if below := &c.node.children[i]; below.node != nil {
			writes = t.storeNode(writes, m, below)
		}
	}
	c.id = t.nextID
	t.nextID++
	return append(writes, write{appendNodeKey(nil, m, c.id), c.node.encode(nil)})
}

// The root record: next id, root id, applied (uvarints), counts of the root, garbage (number, ids),
// series (number, each length-prefixed).
func (t *tree) encode(b []byte) []byte {
	b = binary.AppendUvarint(b, t.nextID)
	b = binary.AppendUvarint(b, t.root.id)
	b = binary.AppendUvarint(b, t.applied)
	b = t.root.counts.encode(b)
	b = binary.AppendUvarint(b, uint64(len(t.garbage)))
	for _, id := range t.garbage {
		b = binary.AppendUvarint(b, id)
	}
	b = binary.AppendUvarint(b, uint64(len(t.series)))
	for _, s := range t.series {
		b = appendPrefixed(b, s)
	}
	return b
}

func decodeTree(b []byte) (*tree, error) {
	d := decoder{b: b}
	t := &tree{nextID: d.uvarint(), root: child{id: d.uvarint()}, applied: d.uvarint()}
	t.root.counts = d.counts(nil)
	t.garbage = make([]uint64, d.count())
	for i := range t.garbage {
		t.garbage[i] = d.uvarint()
	}
	t.series = make([]string, d.count())
	for i := range t.series {
		t.series[i] = string(d.prefixed())
	}
	return t, d.err("index root")
}

// loadTree reads a merchant's root record; nil when the merchant has no events.
func loadTree(txn *badger.Txn, m merchantKey) (t *tree, err error) {
	item, err := txn.Get(appendRootKey(nil, m))
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	err = item.Value(func(b []byte) error {
		t, err = decodeTree(b)
		return err
	})
	return t, err
}

func loadNode(txn *badger.Txn, m merchantKey, id uint64) (n *node, err error) {
	item, err := txn.Get(appendNodeKey(nil, m, id))
	if err != nil {
		return nil, fmt.Errorf("index node %d: %w", id, err)
	}
	err = item.Value(func(b []byte) error {
		n, err = decodeNode(b)
		return err
	})
	return n, err
}

// replay applies the chunks that came after the last checkpoint.
func (x *index) replay() error {
	txn := x.db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	item, err := txn.Get([]byte{prefixCheckpoint})
	switch {
	case errors.Is(err, badger.ErrKeyNotFound):
	case err != nil:
		return err
	default:
		if err := item.Value(func(b []byte) error {
			x.applied = binary.BigEndian.Uint64(b)
			return nil
		}); err != nil {
			return err
		}
	}
	it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{prefixChunk}})
	defer it.Close()
	var data []byte
	for it.Seek(appendChunkKey(nil, x.applied+1)); it.Valid(); it.Next() {
		seq, err := parseChunkKey(it.Item().Key())
		if err != nil {
			return err
		}
		if err := it.Item().Value(func(packed []byte) error {
			data, err = unpackChunk(data[:0], packed)
			return err
		}); err != nil {
			return err
		}
		if err := x.apply([]chunk{{seq, data}}); err != nil {
			return err
		}
		x.applied = seq
		if x.nodes >= checkpointNodes {
			if err := x.checkpoint(); err != nil {
				return err
			}
		}
	}
	return nil
}
