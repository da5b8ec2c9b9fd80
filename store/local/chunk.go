package local

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"time"

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

func (e chunkEvent) listed(p position) store.Event {
	_, name := splitSeries(e.series)
	return store.Event{
		ID:   p.eventID(),
		MUID: store.MUID(e.muid),
		Name: name,
		Time: time.UnixMicro(e.time).UTC(),
		Raw:  bytes.Clone(e.raw),
	}
}

// wanted is an event to be read: where it stands, and its number among the results.
type wanted struct {
	position
	i int
}

// aheadChunks is how many more chunks have to be wanted for reading ahead to be worth it.
const aheadChunks = 4

// readEvents calls use with each of the events. It sorts them by position, so that each chunk is unpacked once, all into the
// same memory, and neighbours in the log are read one after the other. The event's fields are valid until use
// returns.
func (e *Engine) readEvents(events []wanted, use func(w wanted, event chunkEvent)) error {
	chunks := byChunk(events)
	txn := e.db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	var data []byte
	var ahead readAhead
	for k, here := range chunks {
		seq := here[0].seq
		item, err := txn.Get(appendChunkKey(nil, seq))
		if err == nil {
			err = item.Value(func(packed []byte) (err error) {
				if k+aheadChunks < len(chunks) {
					ahead.reading(packed)
				}
				data, err = unpackChunk(data, packed)
				return err
			})
		}
		if err == nil {
			err = useEvents(data, here, use)
		}
		if err != nil {
			return fmt.Errorf("chunk %d: %w", seq, err)
		}
	}
	return nil
}

// byChunk sorts events by position, and splits them into those of one chunk each.
func byChunk(events []wanted) (chunks [][]wanted) {
	slices.SortFunc(events, func(a, b wanted) int { return a.compare(b.position) })
	start := 0
	for i := range events {
		if i+1 == len(events) || events[i+1].seq != events[i].seq {
			chunks = append(chunks, events[start:i+1])
			start = i + 1
		}
	}
	return chunks
}

// useEvents calls use with some events of one chunk, each of which is wanted once, in their order.
func useEvents(chunk []byte, events []wanted, use func(w wanted, event chunkEvent)) error {
	d := decoder{b: chunk}
	for i := 0; len(events) > 0; i++ {
		event := d.next()
		if err := d.err("chunk"); err != nil {
			return err
		}
		if i == int(events[0].index) {
			use(events[0], event)
			events = events[1:]
		}
	}
	return nil
}
