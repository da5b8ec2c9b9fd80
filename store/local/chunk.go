package local

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/klauspost/compress/s2"

	"mtagd/store"
)

// A chunk holds events in their order of receipt, of any merchants, and is their permanent home: it
// is written once, by the commit that acknowledges them. Each event is
//
//	merchant (16 bytes) | tag, name, muid, raw (each length-prefixed) | time (varint, µs since 1970)
//
// where the series, tag and name, stands as one run of bytes so that it can be looked up as one. A
// chunk is stored as one S2 block: events resemble each other, and all that is done with a
// value (log, sync) costs by the byte. zstd makes a full one a third smaller at six times the
// cost, and a lone event's a sixth smaller at forty times (BenchmarkCompress in bench).
const (
	chunkBytes  = 8 << 10 // a chunk is closed when it has reached this size …
	chunkEvents = 256     // … or this number of events
)

// chunk is a chunk as it was before it was packed, and the number that it is stored under.
type chunk struct {
	seq  uint64
	data []byte
}

// maxChunk is far above the size of any chunk, in bytes. A damaged block may claim to be of any size.
const maxChunk = 16 << 20

// packChunk appends the stored form of a chunk.
func packChunk(dst, chunk []byte) []byte {
	dst = slices.Grow(dst, s2.MaxEncodedLen(len(chunk)))
	block := s2.Encode(dst[len(dst):cap(dst)], chunk)
	return dst[:len(dst)+len(block)]
}

// unpackChunk returns the chunk of which packed is the stored form, in the memory of buf where that suffices.
func unpackChunk(buf, packed []byte) ([]byte, error) {
	n, err := s2.DecodedLen(packed)
	if err == nil && n > maxChunk {
		err = s2.ErrTooLarge
	}
	if err != nil {
		return nil, fmt.Errorf("%w: chunk: %w", errCorrupt, err)
	}
	chunk, err := s2.Decode(buf[:cap(buf)], packed)
	if err != nil {
		return nil, fmt.Errorf("%w: chunk: %w", errCorrupt, err)
	}
	return chunk, nil
}

// chunkEvent is one event of a chunk; its fields alias the chunk.
type chunkEvent struct {
	merchant merchantKey
	series   []byte // tag and name, each length-prefixed
	muid     []byte
	raw      []byte
	time     int64 // µs since 1970
}

func appendEvent(b []byte, m merchantKey, mark *store.Mark, muid store.MUID) []byte {
	b = append(b, m[:]...)
	b = appendPrefixed(b, string(mark.Tag))
	b = appendPrefixed(b, mark.Name)
	b = appendPrefixed(b, string(muid))
	b = appendPrefixed(b, mark.Raw)
	return binary.AppendVarint(b, mark.Time.UnixMicro())
}

// next reads the next event of a chunk.
func (d *decoder) next() (e chunkEvent) {
	copy(e.merchant[:], d.bytes(len(e.merchant)))
	start := d.b
	d.prefixed()
	d.prefixed()
	e.series = start[:len(start)-len(d.b)]
	e.muid = d.prefixed()
	e.raw = d.prefixed()
	e.time = d.varint()
	return e
}

// chunkEventAt returns the event at a position of its chunk.
func chunkEventAt(chunk []byte, p position) (chunkEvent, error) {
	d := decoder{b: chunk}
	var e chunkEvent
	for range int(p.index) + 1 {
		e = d.next()
	}
	return e, d.err("chunk")
}

func (e chunkEvent) listed(p position) store.Event {
	_, name := splitSeries(e.series)
	return store.Event{
		ID:   p.eventID(),
		MUID: store.MUID(e.muid),
		Name: name,
		Time: time.UnixMicro(e.time).UTC(),
		Raw:  e.raw,
	}
}

// chunkReader reads events that are named by their positions.
type chunkReader struct {
	txn    *badger.Txn
	chunks map[uint64][]byte // by seq: neighbours in a listing are often neighbours in a chunk
}

// maxChunksKept bounds a reader's memory.
const maxChunksKept = 256

func (e *Engine) chunks() *chunkReader {
	return &chunkReader{txn: e.db.NewTransactionAt(math.MaxUint64, false), chunks: map[uint64][]byte{}}
}

func (r *chunkReader) close() { r.txn.Discard() }

func (r *chunkReader) event(p position) (chunkEvent, error) {
	data, ok := r.chunks[p.seq]
	if !ok {
		item, err := r.txn.Get(appendChunkKey(nil, p.seq))
		if err != nil {
			return chunkEvent{}, fmt.Errorf("chunk %d: %w", p.seq, err)
		}
		if err := item.Value(func(packed []byte) error {
			data, err = unpackChunk(nil, packed)
			return err
		}); err != nil {
			return chunkEvent{}, fmt.Errorf("chunk %d: %w", p.seq, err)
		}
		if len(r.chunks) >= maxChunksKept {
			clear(r.chunks)
		}
		r.chunks[p.seq] = data
	}
	return chunkEventAt(data, p)
}
