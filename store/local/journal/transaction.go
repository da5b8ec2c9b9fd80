package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// transaction is one Badger transaction, with a group or a part of one.
type transaction struct {
	txn       *badger.Txn
	clock     *clock
	arena     *arena
	now       time.Time
	oldDedupe bool // earlier versions may have remembered event_ids (prefixOldDedupe)
	indexed   bool // all links are in the index of muids (prefixLinked)

	suppressed func(store.MerchantID, *store.Identity, store.MUID) bool

	tap     *tap          // nil: nobody wants to know what is committed
	entries []codec.Entry // what set got, for the tap, without versions

	count, maxCount, bytes, maxBytes int // of the entries in txn

	merchant store.MerchantID  // of the last mark
	key      codec.MerchantKey // its key

	// The open chunk, which takes the next events. There is none while chunkEvents is 0; then seq is the number of the
	// last closed one.
	seq         uint64
	chunkStart  int // where it begins in arena.chunks
	chunkEvents int // how many events it has
}

// isFull reports whether the transaction must be committed before the next mark. The bounds are half of Badger's limits,
// and a single mark is far smaller than the other half.
func (t *transaction) isFull() bool {
	open := 0
	if t.chunkEvents > 0 {
		open = len(t.arena.chunks) - t.chunkStart
	}
	return t.count >= t.maxCount || t.bytes+open >= t.maxBytes
}

// record resolves, deduplicates and appends one mark (store.Events, Record).
func (t *transaction) record(m *store.Mark) error {
	if m.Merchant != t.merchant { // neighbours are often of one merchant
		key, err := codec.NewMerchantKey(m.Merchant)
		if err != nil {
			return err
		}
		t.merchant, t.key = m.Merchant, key
	}
	key, muid, byClaim := t.key, m.Identity.MUID, false
	if muid == "" {
		l, err := resolve(t.txn, key, &m.Identity)
		if err != nil {
			return err
		}
		muid, byClaim = store.MUID(l.muid), l.source != store.BySecret
	}
	if t.suppressed != nil && t.suppressed(m.Merchant, &m.Identity, muid) {
		m.Outcome = store.Suppressed
		return nil
	}
	if muid == "" {
		m.Outcome = store.Unresolved
		return nil
	}
	if m.DedupeID != "" {
		first, err := t.rememberEventID(key, m)
		if err != nil {
			return err
		}
		if !first {
			m.Outcome = store.Duplicate
			return nil
		}
	}
	if m.Identity.MUID != "" {
		if err := t.link(key, &m.Identity); err != nil {
			return err
		}
	}
	m.Outcome = store.Recorded
	return t.appendEvent(key, m, muid, byClaim)
}

// Badger drops a remembered event_id after dedupeTTL. The engine's clock decides when the event_id stops counting.
// Badger uses the system's clock. Its TTL is longer, so that the two clocks need not agree.
const dedupeTTL = store.DedupeWindow + 24*time.Hour

// rememberEventID remembers a mark's name and event_id. It reports whether the two are the first within
// store.DedupeWindow.
func (t *transaction) rememberEventID(m codec.MerchantKey, mark *store.Mark) (first bool, err error) {
	key := t.arena.key(func(b []byte) []byte { return appendDedupeKey(b, m, mark.Name, mark.DedupeID) })
	remembered, err := t.remembers(key)
	if !remembered && err == nil && t.oldDedupe {
		var buf [64]byte
		remembered, err = t.remembers(appendOldDedupeKey(buf[:0], m, mark.DedupeID))
	}
	if remembered || err != nil {
		return false, err
	}
	value := t.arena.key(func(b []byte) []byte { return binary.BigEndian.AppendUint64(b, uint64(t.now.UnixMicro())) })
	return true, t.set(badger.NewEntry(key, value).WithTTL(dedupeTTL))
}

// remembers reports whether an event_id's key was written within store.DedupeWindow.
func (t *transaction) remembers(key []byte) (remembered bool, err error) {
	_, err = lookup(t.txn, key, func(b []byte) error {
		if len(b) != 8 {
			return fmt.Errorf("%w: time of an event_id", codec.ErrCorrupt)
		}
		remembered = t.now.Sub(time.UnixMicro(int64(binary.BigEndian.Uint64(b)))) < store.DedupeWindow
		return nil
	})
	return remembered, err
}

// appendEvent adds the mark's event to the open chunk.
func (t *transaction) appendEvent(m codec.MerchantKey, mark *store.Mark, muid store.MUID, byClaim bool) error {
	if t.chunkEvents == 0 {
		t.chunkStart, t.seq = len(t.arena.chunks), t.clock.next()
	}
	var series []byte
	start := len(t.arena.chunks)
	t.arena.chunks, series = appendEvent(t.arena.chunks, m, mark, muid, byClaim)
	t.arena.events = append(t.arena.events, codec.Event{
		Merchant: m,
		Position: codec.Position{Seq: t.seq, Index: uint16(t.chunkEvents)},
		Time:     mark.Time.UnixMicro(),
		Series:   series,
		Size:     uint32(len(t.arena.chunks) - start),
	})
	t.chunkEvents++
	if len(t.arena.chunks)-t.chunkStart >= maxChunkBytes || t.chunkEvents == maxChunkEvents {
		return t.closeChunk()
	}
	return nil
}

// closeChunk stores the open chunk, if there is one.
func (t *transaction) closeChunk() error {
	if t.chunkEvents == 0 {
		return nil
	}
	t.chunkEvents = 0
	key := t.arena.key(func(b []byte) []byte { return appendChunkKey(b, t.seq) })
	return t.set(badger.NewEntry(key, t.arena.pack(t.arena.chunks[t.chunkStart:])))
}

// delete deletes a key.
func (t *transaction) delete(key []byte) error {
	t.count++
	t.bytes += len(key)
	if t.tap != nil {
		t.entries = append(t.entries, codec.Entry{Key: bytes.Clone(key), Deleted: true})
	}
	return t.txn.Delete(key)
}

func (t *transaction) set(e *badger.Entry) error {
	t.count++
	t.bytes += len(e.Key) + len(e.Value)
	if t.tap != nil {
		t.entries = append(t.entries, codec.Entry{Key: e.Key, Value: e.Value, ExpiresAt: e.ExpiresAt}) // CommitAt changes e.Key
	}
	return t.txn.SetEntry(e)
}
