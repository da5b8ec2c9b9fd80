package archive

import (
	"bytes"
	"cmp"
	"slices"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/codec"
)

// Run is events of any merchants that Add stores together. The zero value is empty.
type Run struct {
	events []runEvent
	bodies []byte
}

type runEvent struct {
	merchant codec.MerchantKey
	at       codec.Position
	from, to uint32 // of the body
}

// Append adds an event. It copies the body. The events of a merchant come in the order of positions.
func (r *Run) Append(m codec.MerchantKey, at codec.Position, body []byte) {
	from := len(r.bodies)
	r.bodies = append(r.bodies, body...)
	r.events = append(r.events, runEvent{m, at, uint32(from), uint32(len(r.bodies))})
}

// Bytes returns the size of all bodies. It must stay below 4 GiB.
func (r *Run) Bytes() int { return len(r.bodies) }

// growth bounds how often an event is written again: a block is replaced only when it is at most so many times as large as
// the events that follow it. So each time an event is written again, its block has become half as large again, until it is
// full.
const growth = 2

// Add stores a run. All of its events are after the boundary, and up to the new one. When Add returns nil, they are on disk.
// It calls pace between merchants, which may wait.
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
	if err := a.view(func(tx *bolt.Tx) error {
		for events := r.events; len(events) > 0; {
			n := 1
			for n < len(events) && events[n].merchant == events[0].merchant {
				n++
			}
			if err := c.addEvents(tx, r, events[:n]); err != nil {
				return err
			}
			events = events[n:]
			pace()
		}
		return nil
	}); err != nil {
		return c.abandon(err)
	}
	c.boundary = max(boundary, a.Boundary())
	return c.commit()
}

// addEvents adds new events of one merchant, which replace its last blocks where these are small.
func (c *change) addEvents(tx *bolt.Tx, r *Run, events []runEvent) error {
	m, size := events[0].merchant, 0
	for _, e := range events {
		size += int(e.to - e.from)
	}
	w := blockWriter{c: c, b: block{merchant: m}}
	replaced, err := c.lastBlocks(tx, m, size)
	if err != nil {
		return err
	}
	for _, old := range slices.Backward(replaced) {
		if err := w.addAll(&old.block); err != nil {
			return err
		}
		c.remove(m, old.placed)
	}
	for _, e := range events {
		if err := w.add(e.at, r.bodies[e.from:e.to]); err != nil {
			return err
		}
	}
	return w.flush()
}

type loadedBlock struct {
	placed
	block
}

// lastBlocks returns those last blocks of a merchant that new events of this size replace, the last one first. One that
// cannot be read stays as it is, with all before it.
func (c *change) lastBlocks(tx *bolt.Tx, m codec.MerchantKey, size int) (replaced []loadedBlock, err error) {
	blocks := tx.Bucket(bucketBlocks).Cursor()
	for k, v := lastOf(blocks, m); bytes.HasPrefix(k, m[:]); k, v = blocks.Prev() {
		at, err := parsePlaced(k, v)
		if err != nil {
			return nil, err
		}
		if at.bytes >= blockBytes || int(at.bytes) > growth*size {
			break
		}
		b, err := c.a.load(&c.memory, m, at)
		if err != nil {
			c.a.log.Error("a block of archived events cannot be read", "merchant", m.ID(), "last_event", at.last.EventID(), "error", err)
			break
		}
		b.content = bytes.Clone(b.content)
		replaced = append(replaced, loadedBlock{at, b})
		size += int(at.bytes)
	}
	return replaced, nil
}

// lastOf moves a cursor to a merchant's last block, or to one of an earlier merchant.
func lastOf(blocks *bolt.Cursor, m codec.MerchantKey) (k, v []byte) {
	k, _ = blocks.Seek(append(m[:], bytes.Repeat([]byte{0xff}, positionBytes)...))
	if k == nil {
		return blocks.Last()
	}
	return blocks.Prev()
}

// blockWriter cuts the events of a merchant into blocks.
type blockWriter struct {
	c     *change
	b     block
	bytes uint64 // of the bodies
}

func (w *blockWriter) add(at codec.Position, body []byte) error {
	w.b.add(at, body)
	w.bytes += uint64(len(body))
	if len(w.b.content) < blockBytes {
		return nil
	}
	return w.flush()
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
	err := w.c.add(&w.b, w.bytes)
	w.b.events, w.b.content, w.bytes = 0, w.b.content[:0], 0
	return err
}
