package local

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
)

// groupWriter puts a group, or as much of it as fits, into a transaction.
type groupWriter struct {
	txn   *badger.Txn
	clock *clock
	arena *arena
	now   time.Time

	count, maxCount, bytes, maxBytes int // of the transaction's entries

	merchant store.MerchantID // of the last mark
	key      merchantKey      // its key

	chunks []chunk
	open   int // where the open chunk starts in the arena; it is open while events > 0
	events int
}

// isFull reports whether the transaction should end. The bounds are half of what Badger takes, and one more mark is far
// below the other half.
func (w *groupWriter) isFull() bool {
	open := 0
	if w.events > 0 {
		open = len(w.arena.events) - w.open
	}
	return w.count >= w.maxCount || w.bytes+open >= w.maxBytes
}

func (w *groupWriter) set(e *badger.Entry) error {
	w.count++
	w.bytes += len(e.Key) + len(e.Value)
	return w.txn.SetEntry(e)
}

// mark resolves, deduplicates and appends one mark (store.Events, Record).
func (w *groupWriter) mark(m *store.Mark) error {
	if m.Merchant != w.merchant { // neighbours are often of one merchant
		key, err := newMerchantKey(m.Merchant)
		if err != nil {
			return err
		}
		w.merchant, w.key = m.Merchant, key
	}
	key, muid := w.key, m.Identity.MUID
	if muid == "" {
		var err error
		if muid, err = resolve(w.txn, key, &m.Identity); err != nil {
			return err
		}
		if muid == "" {
			m.Outcome = store.Unresolved
			return nil
		}
	}
	if m.DedupeID != "" {
		first, err := w.remember(key, m.DedupeID)
		if err != nil {
			return err
		}
		if !first {
			m.Outcome = store.Duplicate
			return nil
		}
	}
	if m.Identity.MUID != "" {
		if err := w.link(key, &m.Identity); err != nil {
			return err
		}
	}
	if w.events == 0 {
		w.open = len(w.arena.events)
	}
	w.arena.events = appendEvent(w.arena.events, key, m, muid)
	w.events++
	m.Outcome = store.Recorded
	if len(w.arena.events)-w.open >= chunkBytes || w.events == chunkEvents {
		return w.closeChunk()
	}
	return nil
}

// closeChunk ends the open chunk, if there is one.
func (w *groupWriter) closeChunk() error {
	if w.events == 0 {
		return nil
	}
	c := chunk{seq: w.clock.next(), data: w.arena.events[w.open:len(w.arena.events):len(w.arena.events)]}
	w.events = 0
	w.chunks = append(w.chunks, c)
	return w.set(badger.NewEntry(w.arena.key(func(b []byte) []byte { return appendChunkKey(b, c.seq) }), w.arena.pack(c.data)))
}

// resolve returns the muid linked to the first of the identifiers that has a link, or "".
func resolve(txn *badger.Txn, m merchantKey, id *store.Identity) (muid store.MUID, err error) {
	for _, k := range id.Keys() {
		var buf [64]byte
		found, err := lookup(txn, appendLinkKey(buf[:0], m, k), func(b []byte) error {
			muid = store.MUID(b)
			return nil
		})
		if found || err != nil {
			return muid, err
		}
	}
	return "", nil
}

// link links the identifiers to the muid. A link that stands already is not written again.
func (w *groupWriter) link(m merchantKey, id *store.Identity) error {
	for _, k := range id.Keys() {
		key := w.arena.key(func(b []byte) []byte { return appendLinkKey(b, m, k) })
		stands := false
		if _, err := lookup(w.txn, key, func(b []byte) error {
			stands = string(b) == string(id.MUID)
			return nil
		}); err != nil {
			return err
		}
		if stands {
			continue
		}
		if err := w.set(badger.NewEntry(key, []byte(id.MUID))); err != nil {
			return err
		}
	}
	return nil
}

// dedupeTTL is when Badger may drop an event_id mark. It is longer than the window, which our own
// clock decides on, so that the two clocks need not agree to the second.
const dedupeTTL = store.DedupeWindow + 24*time.Hour

// remember marks an event_id and reports whether it was new within the window.
func (w *groupWriter) remember(m merchantKey, id string) (first bool, err error) {
	sum := sha256.Sum256([]byte(id))
	key := w.arena.key(func(b []byte) []byte { return appendDedupeKey(b, m, [16]byte(sum[:])) })
	var at time.Time
	found, err := lookup(w.txn, key, func(b []byte) error {
		at = time.UnixMicro(int64(binary.BigEndian.Uint64(b)))
		return nil
	})
	if err != nil || found && w.now.Sub(at) < store.DedupeWindow {
		return false, err
	}
	value := w.arena.key(func(b []byte) []byte { return binary.BigEndian.AppendUint64(b, uint64(w.now.UnixMicro())) })
	return true, w.set(badger.NewEntry(key, value).WithTTL(dedupeTTL))
}
