package journal

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"time"

	"mtagd/store"
	"mtagd/store/groupcommit"
	"mtagd/store/local/codec"
	"mtagd/store/rules"
)

// transaction is one record of the log: a group of marks, or a part of one.
type transaction struct {
	keys      *keyStore
	clock     *clock
	arena     *arena
	now       time.Time
	expiresAt uint64 // when the database drops an event_id of now, in s since 1970
	version   uint64

	refuses func(store.MerchantID, *store.Identity, store.MUID) store.Outcome

	record  []byte   // entries (codec.AppendEntry), in the arena
	written []stored // the chunks in it, without their bytes and positions

	merchant store.MerchantID  // of the last mark
	key      store.MerchantKey // its key
	scratch  []byte            // for a key
	linkKey  []byte            // the key of a link
	eventID  eventIDKey        // that of the last mark
	received []byte            // its value

	// The open chunk, which takes the next events. While chunkEvents is 0 there is none, and seq is the number of the last
	// one.
	seq         uint64
	chunkStart  int      // where the chunk begins in arena.chunks
	chunkEvents int      // number of its events
	merchants   []uint32 // hashOf their merchants
}

// maxTransaction is how many bytes a transaction may have before the next mark.
const maxTransaction = 1 << 20

// isFull reports whether the transaction must be committed before the next mark.
func (t *transaction) isFull() bool {
	return len(t.record)+len(t.arena.chunks)-t.chunkStart >= maxTransaction
}

// addPart adds a part's link, or its mark i.
func (t *transaction) addPart(p groupcommit.Part, i int) error {
	if p.Link == nil {
		return t.add(&p.Marks[i])
	}
	m := store.MerchantKey(p.Merchant)
	if t.refuses != nil && t.refuses(m.ID(), p.Link, p.Link.MUID) != 0 {
		return nil // nothing is kept of the person
	}
	return t.link(m, p.Link)
}

// add resolves, deduplicates and appends one mark (store.Events, Record).
func (t *transaction) add(m *store.Mark) error {
	if m.Merchant != t.merchant { // consecutive events often have the same merchant
		key, err := store.NewMerchantKey(m.Merchant)
		if err != nil {
			return err
		}
		t.merchant, t.key = m.Merchant, key
	}
	key, muid := t.key, m.Identity.MUID
	m.ByClaim = false
	if muid == "" {
		l, err := resolve(t.keys.cachedLink, key, &m.Identity)
		if err != nil {
			return err
		}
		muid, m.ByClaim = store.MUID(l.muid), l.source != store.BySecret
	}
	refused := store.Outcome(0)
	if t.refuses != nil {
		refused = t.refuses(m.Merchant, &m.Identity, muid)
	}
	remembered := false // the other marks need no look-up, which may fail
	if m.DedupeID != "" && refused == 0 && muid != "" {
		appendDedupeKey(t.eventID[:0], key, m.Name, m.DedupeID)
		var err error
		if remembered, err = t.remembers(&t.eventID); err != nil {
			return err
		}
	}
	outcome := rules.Outcome(refused, muid, remembered)
	if outcome != store.Recorded {
		m.Outcome = outcome
		return nil
	}
	if m.Identity.MUID != "" {
		if err := t.link(key, &m.Identity); err != nil {
			return err
		}
	}
	if m.DedupeID != "" { // all look-ups are done: nothing can fail any more
		t.received = binary.BigEndian.AppendUint64(t.received[:0], uint64(t.now.UnixMicro()))
		t.set(t.eventID[:], t.received, t.expiresAt)
	}
	m.Outcome = outcome
	t.appendEvent(key, m, muid)
	return nil
}

// The database drops a remembered event_id after dedupeTTL, by the system's clock. The engine's clock decides when the
// event_id stops counting. dedupeTTL is longer, so that the two clocks need not agree.
const dedupeTTL = store.DedupeWindow + 24*time.Hour

// remembers reports whether an event_id was received within store.DedupeWindow.
func (t *transaction) remembers(id *eventIDKey) (bool, error) {
	b, found, err := t.keys.getWritten(id[:])
	if err != nil || !found {
		return false, err
	}
	at, err := parseReceived(b)
	return t.now.Sub(time.UnixMicro(at)) < store.DedupeWindow, err
}

func parseReceived(b []byte) (at int64, err error) {
	if len(b) != 8 {
		return 0, fmt.Errorf("%w: time of an event_id", codec.ErrCorrupt)
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

// appendEvent adds the mark's event to the open chunk.
func (t *transaction) appendEvent(m store.MerchantKey, mark *store.Mark, muid store.MUID) {
	if t.chunkEvents == 0 {
		t.chunkStart, t.seq = len(t.arena.chunks), t.clock.next()
		t.merchants = t.merchants[:0]
	}
	if n := len(t.merchants); n == 0 || t.merchants[n-1] != hashOf(m) { // consecutive events often have the same merchant
		t.merchants = append(t.merchants, hashOf(m))
	}
	var series []byte
	start := len(t.arena.chunks)
	t.arena.chunks, series = appendEvent(t.arena.chunks, m, mark, muid)
	t.arena.events = append(t.arena.events, codec.Event{
		Merchant: m,
		Position: store.Position{Seq: t.seq, Index: uint16(t.chunkEvents)},
		Time:     mark.Time.UnixMicro(),
		Series:   series,
		Size:     uint32(len(t.arena.chunks) - start),
	})
	t.chunkEvents++
	if len(t.arena.chunks)-t.chunkStart >= maxChunkBytes || t.chunkEvents == maxChunkEvents {
		t.closeChunk()
	}
}

// closeChunk stores the open chunk, if there is one.
func (t *transaction) closeChunk() {
	if t.chunkEvents == 0 {
		return
	}
	events := t.chunkEvents
	t.chunkEvents = 0
	t.arena.packed = packChunk(t.arena.packed[:0], t.arena.chunks[t.chunkStart:])
	t.scratch = appendChunkKey(t.scratch[:0], t.seq)
	to := t.append(codec.Entry{Key: t.scratch, Value: t.arena.packed, Version: t.version})
	t.written = append(t.written, stored{seq: t.seq, version: t.version, from: to - len(t.arena.packed), to: to, events: events,
		merchants: slices.Clone(t.merchants)})
	t.chunkStart = len(t.arena.chunks)
}

// append appends an entry to the record, and returns where its value ends there.
func (t *transaction) append(e codec.Entry) (end int) {
	t.record = codec.AppendEntry(t.record, e)
	return len(t.record) - codec.EntryTrailerSize(e)
}

// set gives a key a value.
func (t *transaction) set(key, value []byte, expiresAt uint64) {
	t.change(codec.Entry{Key: key, Value: value, Version: t.version, ExpiresAt: expiresAt})
}

// delete deletes a key.
func (t *transaction) delete(key []byte) {
	t.change(codec.Entry{Key: key, Version: t.version, Deleted: true})
}

func (t *transaction) change(e codec.Entry) {
	t.append(e)
	t.keys.set(e)
}

// arena is the memory of a transaction until the callback has read its events. Slices of it stay valid when it grows.
type arena struct {
	chunks []byte        // chunks, one after the other
	packed []byte        // the last one, as it is stored
	record []byte        // entries
	events []codec.Event // the events in chunks; their series alias chunks
}

// newArenas returns a pool of released arenas, for later transactions.
func newArenas() *sync.Pool {
	return &sync.Pool{New: func() any { return &arena{chunks: make([]byte, 0, 256<<10)} }}
}

// release empties an arena, to which nothing refers any more, for reuse.
func (a *arena) release(to *sync.Pool) {
	clear(a.events) // their series may still alias an array that chunks has outgrown
	a.chunks, a.record, a.events = a.chunks[:0], a.record[:0], a.events[:0]
	to.Put(a)
}
