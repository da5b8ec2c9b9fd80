package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/klauspost/compress/s2"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// A chunk holds events of any merchants in the order of receipt. It is written in the commit that acknowledges its
// events, and never changes. Each event is
//
//	merchant (16 bytes) | tag, name, muid, raw (each length-prefixed) | time (varint, µs since 1970)
//
// What follows the merchant is the event's body, which the archive keeps as it is. In raw, the event's details
// (store.Details.Append) are before its JSON.
//
// Tag and name together are the series (codec.AppendSeries): the name of a bot's event has a mark behind it. A chunk is
// stored as one S2 block. Compression pays, as events resemble each other, and logging and syncing cost by the byte. zstd
// would make a full chunk a third smaller at six times the cost, and the chunk of a single event a sixth smaller at forty
// times the cost (BenchmarkCompress in bench).
const (
	// A chunk is closed when it has reached one of these sizes.
	maxChunkBytes  = 8 << 10
	maxChunkEvents = 256
)

// maxUnpacked bounds what unpackChunk allocates: a damaged block may claim any size. It is far above the size of any chunk.
const maxUnpacked = 16 << 20

// packChunk appends the stored form of a chunk.
func packChunk(dst, chunk []byte) []byte {
	dst = slices.Grow(dst, s2.MaxEncodedLen(len(chunk)))
	block := s2.Encode(dst[len(dst):cap(dst)], chunk)
	return dst[:len(dst)+len(block)]
}

// unpackChunk returns the chunk whose stored form is packed. It uses the memory of buf if that is large enough.
func unpackChunk(buf, packed []byte) ([]byte, error) {
	n, err := s2.DecodedLen(packed)
	if err == nil && n > maxUnpacked {
		err = s2.ErrTooLarge
	}
	if err != nil {
		return nil, fmt.Errorf("%w: chunk: %w", codec.ErrCorrupt, err)
	}
	chunk, err := s2.Decode(buf[:cap(buf)], packed)
	if err != nil {
		return nil, fmt.Errorf("%w: chunk: %w", codec.ErrCorrupt, err)
	}
	return chunk, nil
}

// Event is one event of a chunk. Its slices alias the chunk.
type Event struct {
	codec.Event
	store.Details
	MUID []byte
	Raw  []byte
	Body []byte // what DecodeBody reads
}

// Clone returns a copy that stays valid, without the body.
func (e *Event) Clone() Event {
	c := *e
	c.Body = nil
	c.Series, c.MUID, c.Raw, c.Details = bytes.Clone(e.Series), bytes.Clone(e.MUID), bytes.Clone(e.Raw), e.Details.Clone()
	return c
}

// appendEvent appends a mark's event to a chunk. It also returns the series, which aliases the result.
func appendEvent(b []byte, m store.MerchantKey, mark *store.Mark, muid store.MUID) (chunk, series []byte) {
	return AppendBody(append(b, m[:]...), mark.Tag, mark.Name, mark.Bot, string(muid), &mark.Details, mark.Raw, mark.Time.UnixMicro())
}

// AppendBody appends an event's body; at is in µs since 1970. It also returns the series, which aliases the result.
func AppendBody[M string | []byte](b []byte, tag store.TagID, name string, bot bool, muid M, details *store.Details, raw []byte, at int64) (body, series []byte) {
	start := len(b)
	b = codec.AppendSeries(b, tag, name, bot)
	series = b[start:len(b):len(b)]
	b = codec.AppendPrefixed(b, muid)
	var buf [256]byte // enough for most
	before := details.Append(buf[:0])
	b = binary.AppendUvarint(b, uint64(len(before)+len(raw)))
	b = append(append(b, before...), raw...)
	return binary.AppendVarint(b, at), series
}

// decodeEvent reads the next event of a chunk; at is its position.
func decodeEvent(d *codec.Decoder, at store.Position) (e Event) {
	copy(e.Merchant[:], d.Bytes(len(e.Merchant)))
	e.Position = at
	e.decodeBody(d)
	return e
}

// decodeBody reads the part of an event that follows the merchant: its body.
func (e *Event) decodeBody(d *codec.Decoder) {
	start := d.B
	d.Prefixed()
	d.Prefixed()
	e.Series = start[:len(start)-len(d.B)]
	e.MUID = d.Prefixed()
	var ok bool
	if e.Raw, ok = e.Cut(d.Prefixed()); !ok {
		d.Fail()
		return
	}
	e.Time = d.Varint()
	e.Body = start[:len(start)-len(d.B)]
	e.Size = uint32(len(e.Merchant) + len(e.Body))
}

// DecodeBody returns the event with a body. It aliases the body.
func DecodeBody(m store.MerchantKey, at store.Position, body []byte) (Event, error) {
	e := Event{Event: codec.Event{Merchant: m, Position: at}}
	d := codec.Decoder{B: body}
	e.decodeBody(&d)
	if len(d.B) > 0 {
		d.Fail()
	}
	return e, d.Err("body of an event")
}

// Listed returns the event as a listing returns it. The result does not alias the chunk.
func (e Event) Listed() store.Event {
	_, name := codec.SplitSeries(e.Series)
	return store.Event{
		ID:      e.EventID(),
		MUID:    store.MUID(e.MUID),
		Name:    string(name),
		Time:    time.UnixMicro(e.Time).UTC(),
		Bot:     codec.IsBot(e.Series),
		Details: e.Details.Clone(),
		Raw:     bytes.Clone(e.Raw),
	}
}
