package archive

import (
	"bytes"
	"cmp"
	"slices"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
)

// Run is events of any merchants that Add stores together. The zero value is empty.
type Run struct {
	events []runEvent
	bodies []byte
	large  int // bytes of a whole run
}

type runEvent struct {
	merchant store.MerchantKey
	at       store.Position
	from, to uint32 // of the body
}

// Up to smallRun bytes of bodies, the memory of a run grows step by step. A larger run gets all of its memory at once.
const smallRun = 1 << 20

// Append adds an event. It copies the body. The events of a merchant come in the order of positions.
func (r *Run) Append(m store.MerchantKey, at store.Position, body []byte) {
	from := len(r.bodies)
	if from > smallRun && from+len(body) > cap(r.bodies) {
		r.bodies = slices.Grow(r.bodies, max(r.large-from, len(body)))
	}
	r.bodies = append(r.bodies, body...)
	r.events = append(r.events, runEvent{m, at, uint32(from), uint32(len(r.bodies))})
}

// Reset removes all events, and keeps their memory for others: a run of at least this many bytes of bodies, and those of one
// more chunk.
func (r *Run) Reset(bytes int) {
	r.events, r.bodies, r.large = r.events[:0], r.bodies[:0], bytes+bytes/64
}

// Bytes returns the size of all bodies. It must stay below 4 GiB.
func (r *Run) Bytes() int { return len(r.bodies) }

// growth bounds how often an event is rewritten: a block is replaced only if it is at most growth times as large as the
// events that follow it. So with each rewrite of an event, its block becomes at least half as large again, until it is full.
const growth = 2

// Add stores a run, whose events are after the boundary and up to the new one. When Add returns nil, they are on disk. After
// an error or a kill some of them may be: add all of them again. Between blocks it calls pace, which may wait.
func (a *Archive) Add(r *Run, boundary uint64, pace func()) error {
	slices.SortFunc(r.events, func(x, y runEvent) int {
		return cmp.Or(bytes.Compare(x.merchant[:], y.merchant[:]), x.at.Compare(y.at))
	})
	a.writing.Lock()
	defer a.writing.Unlock()
	c, err := a.begin()
	if err != nil {
		return err
	}
	if err := a.db.View(func(txn *badgerdb.Txn) error {
		for events := r.events; len(events) > 0; {
			n := 1
			for n < len(events) && events[n].merchant == events[0].merchant {
				n++
			}
			if err := c.addEvents(txn, r, events[:n], pace); err != nil {
				return err
			}
			events = events[n:]
		}
		return nil
	}); err != nil {
		return err
	}
	c.boundary = max(boundary, a.Boundary())
	if err := c.commit(); err != nil {
		return err
	}
	return a.flush()
}

// addEvents adds new events of one merchant. If its last blocks are small, it rewrites their events together with the new
// ones.
func (c *change) addEvents(txn *badgerdb.Txn, r *Run, events []runEvent, pace func()) error {
	m, size := events[0].merchant, 0
	for _, e := range events {
		size += int(e.to - e.from)
	}
	w := blockWriter{c: c, txn: txn, b: block{merchant: m}, pace: pace}
	last, replaced, err := c.lastBlocks(txn, m, size)
	if err != nil {
		return err
	}
	w.b.first = next(last)
	if len(replaced) > 0 {
		w.b.first = replaced[len(replaced)-1].first
	}
	for _, old := range slices.Backward(replaced) {
		if err := c.remove(txn, old.blockKey, old.usage); err != nil {
			return err
		}
	}
	for _, old := range slices.Backward(replaced) {
		if err := w.addAll(&old.block); err != nil {
			return err
		}
	}
	w.mayCommit = true // from the next block on, a commit has all events of the deleted ones
	for _, e := range events {
		if e.at.Compare(last) <= 0 {
			continue // stored by an earlier Add that was cut off
		}
		if err := w.add(e.at, r.bodies[e.from:e.to]); err != nil {
			return err
		}
	}
	if err := w.flush(); err != nil || !c.isFull() {
		return err
	}
	return c.commit()
}

// loadedBlock is a block with its key.
type loadedBlock struct {
	blockKey
	block
	usage Usage
}

func usageOf(k blockKey, b block, stored []byte) Usage {
	return Usage{uint64(b.events), uint64(len(stored)), k.last}
}

// lastBlocks returns the last blocks of a merchant that are replaced when events of this size are added, the last one first,
// and the end of the merchant's last block. A block that cannot be read is not replaced, nor are those before it. The same
// holds for a block without events: a backup must not lose it (restore.go).
func (c *change) lastBlocks(txn *badgerdb.Txn, m store.MerchantKey, size int) (end store.Position, replaced []loadedBlock, err error) {
	it := txn.NewIterator(badgerdb.IteratorOptions{Prefix: appendMerchantKey(nil, prefixBlock, m), Reverse: true})
	first := true
	it.Seek(endOfMerchant(m))
	// What is replaced fills two blocks at most: full ones of 1.0.0 have half the size, and a merchant may have a million.
	for added := size; it.Valid() && size-added < 2*blockBytes; it.Next() {
		k, err := parseBlockKey(it.Entry().Key)
		if err != nil {
			return end, nil, err
		}
		if first {
			end, first = k.last, false
		}
		b, err := c.a.coder.unpack(&c.memory, k, it.Entry().Value)
		if err != nil {
			c.a.log.Error("a block of archived events cannot be read", "merchant", m.ID(), "last_event", k.last.EventID(), "error", err)
			break
		}
		if b.events == 0 || len(b.content) >= blockBytes || len(b.content) > growth*size {
			break
		}
		b.content = bytes.Clone(b.content)
		replaced = append(replaced, loadedBlock{k, b, usageOf(k, b, it.Entry().Value)})
		size += len(b.content)
	}
	return end, replaced, it.Err()
}

// blockWriter cuts the events of a merchant into blocks.
type blockWriter struct {
	c         *change
	txn       *badgerdb.Txn
	b         block
	mayCommit bool
	pace      func()
}

func (w *blockWriter) add(at store.Position, body []byte) error {
	w.b.add(at, body)
	if len(w.b.content) < blockBytes {
		return nil
	}
	if err := w.flush(); err != nil || !w.mayCommit || !w.c.isFull() {
		return err
	}
	return w.c.commit()
}

// addAll adds the events of an old block.
func (w *blockWriter) addAll(b *block) error {
	var failed error
	err := b.each(func(e Event) bool {
		failed = w.add(e.Position, e.Body)
		return failed == nil
	})
	return cmp.Or(failed, err)
}

func (w *blockWriter) flush() error {
	if w.b.events == 0 {
		return nil
	}
	err := w.c.add(w.txn, &w.b, 0)
	w.b = block{merchant: w.b.merchant, first: next(w.b.last), content: w.b.content[:0]}
	w.pace()
	return err
}
