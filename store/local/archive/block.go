package archive

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"

	"mtagd/store"
	"mtagd/store/local/codec"
)

const (
	// blockBytes is the size of content at which a block is full. In a block of twice the size an event takes 5 % less of
	// the disk; in one of half the size, 15 % more. A listing that needs one event has to unpack the whole block.
	blockBytes = 32 << 10

	// maxContent bounds the memory that a damaged header can claim. The largest block lacked one byte to be full, and then
	// got the largest event.
	maxContent = blockBytes + store.MaxEventBytes + 64<<10

	blockHeader  = 4 + len(store.MerchantKey{}) + 2*positionBytes + 4 + 4
	blockTrailer = 4
)

// checker unpacks the blocks of CheckBlock, which are in no open archive.
var checker = sync.OnceValues(newCoder)

// block is a block in memory. It has all events of the merchant from first to last, except those that were removed. These
// may include the events at first and last.
type block struct {
	merchant    store.MerchantKey
	first, last store.Position
	events      int
	content     []byte
}

// coder compresses and unpacks content. Any goroutine may unpack; one at a time compresses.
type coder struct {
	encoder *zstd.Encoder
	decoder *zstd.Decoder
}

func newCoder() (*coder, error) {
	// Blocks have a checksum of their own.
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false),
		zstd.WithWindowSize(128<<10), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, err
	}
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxContent), zstd.IgnoreChecksum(true))
	return &coder{encoder, decoder}, err
}

func (c *coder) close() { c.decoder.Close() }

// add appends an event to a block. The event's position is greater than those before it.
func (b *block) add(at store.Position, body []byte) {
	if b.events == 0 {
		b.last = store.Position{Seq: b.first.Seq}
	}
	index := at.Index
	if at.Seq == b.last.Seq {
		index -= b.last.Index
	}
	b.content = binary.AppendUvarint(b.content, at.Seq-b.last.Seq)
	b.content = binary.AppendUvarint(b.content, uint64(index))
	b.content = codec.AppendPrefixed(b.content, body)
	b.last = at
	b.events++
}

// append appends the stored form of a block.
func (c *coder) append(dst []byte, b *block) []byte {
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst = append(dst, b.merchant[:]...)
	dst = appendPosition(dst, b.first)
	dst = appendPosition(dst, b.last)
	dst = binary.BigEndian.AppendUint32(dst, uint32(b.events))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(b.content)))
	dst = c.encoder.EncodeAll(b.content, dst)
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start+blockTrailer))
	return append(dst[:start], codec.Seal(nil, dst[start:])...)
}

// readHeader reads the header of a stored block, without its content.
func readHeader(stored []byte) (b block, size int, err error) {
	d := codec.Decoder{B: stored}
	n := d.Bytes(4)
	copy(b.merchant[:], d.Bytes(len(b.merchant)))
	b.first, b.last = readPosition(&d), readPosition(&d)
	counts := d.Bytes(8)
	if err := d.Err("header of a block"); err != nil {
		return block{}, 0, err
	}
	b.events = int(binary.BigEndian.Uint32(counts))
	if int64(binary.BigEndian.Uint32(n)) != int64(len(stored)) {
		err = fmt.Errorf("%w: length of a block", codec.ErrCorrupt)
	}
	return b, int(binary.BigEndian.Uint32(counts[4:])), err
}

// memory is reused from block to block.
type memory struct{ content []byte }

// unpack checks a stored block and returns it. Its content is valid until m is used again.
func (c *coder) unpack(m *memory, k blockKey, stored []byte) (block, error) {
	sealed := codec.Unseal(nil, stored)
	if sealed == nil {
		return block{}, fmt.Errorf("%w: checksum of a block", codec.ErrCorrupt)
	}
	b, size, err := readHeader(stored)
	if err == nil && size > maxContent {
		err = fmt.Errorf("%w: a block of %d bytes", codec.ErrCorrupt, size)
	}
	if err != nil {
		return block{}, err
	}
	b.content, err = c.decoder.DecodeAll(sealed[blockHeader:], slices.Grow(m.content[:0], size))
	if err == nil && len(b.content) != size {
		err = fmt.Errorf("%d bytes instead of %d", len(b.content), size)
	}
	if err != nil {
		return block{}, fmt.Errorf("%w: content of a block: %w", codec.ErrCorrupt, err)
	}
	m.content = b.content
	if b.merchant != k.merchant || b.last != k.last {
		return block{}, fmt.Errorf("%w: a block is stored as another one", codec.ErrCorrupt)
	}
	return b, nil
}

// each calls use with each event of a block, until use returns false.
func (b *block) each(use func(Event) bool) error {
	d := codec.Decoder{B: b.content}
	at := store.Position{Seq: b.first.Seq}
	for range b.events {
		seq, index := d.Uvarint(), uint16(d.Uvarint())
		if seq == 0 {
			index += at.Index
		}
		at = store.Position{Seq: at.Seq + seq, Index: index}
		body := d.Prefixed()
		if err := d.Err("event of a block"); err != nil {
			return err
		}
		if !use(Event{at, body}) {
			return nil
		}
	}
	if b.events > 0 && at.Compare(b.last) > 0 || len(d.B) > 0 {
		return fmt.Errorf("%w: events of a block", codec.ErrCorrupt)
	}
	return nil
}

const positionBytes = 8 + 2

func appendPosition(b []byte, p store.Position) []byte {
	return binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint64(b, p.Seq), p.Index)
}

func readPosition(d *codec.Decoder) (p store.Position) {
	if b := d.Bytes(positionBytes); b != nil {
		p = store.Position{Seq: binary.BigEndian.Uint64(b), Index: binary.BigEndian.Uint16(b[8:])}
	}
	return p
}
