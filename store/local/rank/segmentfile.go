package rank

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/codec"
)

// storedSegments is the record of a merchant's stored segments.
type storedSegments struct {
	nextID   uint64 // greater than the ids of all segments, also of those that are being written
	segments []*segment
}

// mixedTags is the tag of a segment of an earlier version that repeats the events of other segments, of several tags. Such a
// segment counts as one with all events removed: no query reads it, and a compaction deletes it.
const mixedTags = 0

func loadSegments(tx *bolt.Tx, m codec.MerchantKey) (*storedSegments, error) {
	b := tx.Bucket(bucketSegments).Get(m[:])
	if b == nil {
		return &storedSegments{nextID: 1}, nil
	}
	d := codec.Decoder{B: codec.Unseal(m[:], b)}
	r := &storedSegments{nextID: d.Uvarint()}
	for range d.Count() {
		s := &segment{id: d.Uvarint(), n: int(d.Uvarint()), tag: uint32(d.Uvarint())}
		d.Uvarint()
		s.removed, s.start = int(d.Uvarint()), d.Varint()
		if s.tag == mixedTags {
			s.removed, s.start = s.n, math.MaxInt64
		}
		r.segments = append(r.segments, s)
	}
	if err := d.Err("segments"); err != nil {
		return nil, fmt.Errorf("index.db: merchant %x: %w", m, err)
	}
	return r, nil
}

func storeSegments(tx *bolt.Tx, m codec.MerchantKey, r *storedSegments) error {
	b := binary.AppendUvarint(nil, r.nextID)
	b = binary.AppendUvarint(b, uint64(len(r.segments)))
	for _, s := range r.segments {
		b = binary.AppendUvarint(b, s.id)
		b = binary.AppendUvarint(b, uint64(s.n))
		b = binary.AppendUvarint(b, uint64(s.tag))
		b = binary.AppendUvarint(b, 1)
		b = binary.AppendUvarint(b, uint64(s.removed))
		b = binary.AppendVarint(b, s.start)
	}
	return tx.Bucket(bucketSegments).Put(m[:], codec.Seal(m[:], b))
}

// A segment that is being written, or is no longer used, is marked as unused. Whoever writes the segment also deletes what
// a kill has left of it, so the mark says who that is. What removals write counts as written by compactions.
const (
	byMerge      = 'm'
	byCompaction = 'c'
)

func markUnused(tx *bolt.Tx, m codec.MerchantKey, id uint64, by byte) error {
	return tx.Bucket(bucketUnused).Put(segmentKey(m, id), []byte{by})
}

// unusedSegments returns the keys of the segments that a merge, or a compaction, has marked as unused.
func unusedSegments(tx *bolt.Tx, by byte) (keys [][]byte) {
	c := tx.Bucket(bucketUnused).Cursor()
	for k, v := c.First(); k != nil; k, v = c.Next() {
		if bytes.Equal(v, []byte{by}) {
			keys = append(keys, bytes.Clone(k))
		}
	}
	return keys
}

func segmentKey(m codec.MerchantKey, id uint64) []byte { return nodeKey(m, id) }

func blockKey(m codec.MerchantKey, id uint64, kind uint8, i int) []byte {
	key := append(make([]byte, 0, len(m)+8+1+4), m[:]...)
	key = append(binary.BigEndian.AppendUint64(key, id), kind)
	return binary.BigEndian.AppendUint32(key, uint32(i))
}

// loadBlock reads a block. It moves the cursor: a query that loads many blocks allocates only one.
func loadBlock(blocks *bolt.Cursor, m codec.MerchantKey, id uint64, kind uint8, i int) (b []byte, err error) {
	want := blockKey(m, id, kind, i)
	if key, sealed := blocks.Seek(want); bytes.Equal(key, want) {
		b = codec.Unseal(want, sealed)
	}
	if b == nil {
		return nil, fmt.Errorf("index.db: %w: block %d of kind %d of segment %d of merchant %x", codec.ErrCorrupt, i, kind, id, m)
	}
	return b, nil
}

// storeBlock stores a copy of b.
func storeBlock(blocks *bolt.Bucket, m codec.MerchantKey, id uint64, kind uint8, i int, b []byte) error {
	key := blockKey(m, id, kind, i)
	return blocks.Put(key, codec.Seal(key, append(make([]byte, 0, len(b)+4), b...)))
}

// queriedBlocks are the blocks of a stored segment, for one query.
type queriedBlocks struct {
	*reader
	id     uint64
	loaded map[uint32][]byte
}

// block returns a block. When the query's context has ended, block returns its error instead of loading.
func (q *queriedBlocks) block(kind uint8, i int) ([]byte, error) {
	key := uint32(kind)<<24 | uint32(i)
	if b, ok := q.loaded[key]; ok {
		return b, nil
	}
	if err := q.ctx.Err(); err != nil {
		return nil, err
	}
	q.loads++
	b, err := loadBlock(q.blocks, q.m, q.id, kind, i)
	if err != nil {
		return nil, err
	}
	q.loaded[key] = b
	return b, nil
}

// openSegments returns readers of the wanted segments.
func (r *reader) openSegments(wanted func(s *segment) bool) (found []*segmentReader, err error) {
	for _, s := range r.recent {
		if wanted(s) {
			found = append(found, newSegmentReader(s, s.blocks))
		}
	}
	stored, err := loadSegments(r.tx, r.m)
	if err != nil {
		return nil, err
	}
	for _, s := range stored.segments {
		if wanted(s) {
			found = append(found, newSegmentReader(s, &queriedBlocks{r, s.id, map[uint32][]byte{}}))
		}
	}
	return found, nil
}
