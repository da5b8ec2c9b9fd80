package archive

import (
	"encoding/binary"
	"fmt"
	"math"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// Format is the version of the archive's layout.
const Format = "1"

// The first byte of every key in Badger.
const (
	prefixBlock    = 'B'
	prefixMerchant = 'M'
	prefixBoundary = 'S'
	prefixPurged   = 'P'
	prefixFormat   = 'F'
	prefixGaps     = 'G'
)

var (
	keyBoundary = []byte{prefixBoundary}
	keyPurged   = []byte{prefixPurged}
	keyFormat   = []byte{prefixFormat}
	keyGaps     = []byte{prefixGaps}
)

const (
	merchantKeyBytes = 1 + len(store.MerchantKey{})
	blockKeyBytes    = merchantKeyBytes + positionBytes + 4
)

// blockKey is the key of a block.
type blockKey struct {
	merchant store.MerchantKey
	last     store.Position
	revision uint32 // greater than that of the block it replaces, if that ends at the same position
}

func appendMerchantKey(b []byte, prefix byte, m store.MerchantKey) []byte {
	return append(append(b, prefix), m[:]...)
}

func (k blockKey) append(b []byte) []byte {
	b = appendPosition(appendMerchantKey(b, prefixBlock, k.merchant), k.last)
	return binary.BigEndian.AppendUint32(b, k.revision)
}

// endOfMerchant is the key at which a reverse iterator over a merchant's blocks starts.
func endOfMerchant(m store.MerchantKey) []byte {
	return blockKey{m, newestPosition, math.MaxUint32}.append(nil)
}

func parseBlockKey(b []byte) (k blockKey, err error) {
	if len(b) != blockKeyBytes || b[0] != prefixBlock {
		return k, fmt.Errorf("%w: key %x of a block", codec.ErrCorrupt, b)
	}
	d := codec.Decoder{B: b[1:]}
	copy(k.merchant[:], d.Bytes(len(k.merchant)))
	k.last = readPosition(&d)
	k.revision = binary.BigEndian.Uint32(d.B)
	return k, nil
}

// isKey reports whether a key is one of the archive's.
func isKey(key []byte) bool {
	n := map[byte]int{prefixBlock: blockKeyBytes, prefixMerchant: merchantKeyBytes, prefixBoundary: 1, prefixPurged: 1, prefixFormat: 1, prefixGaps: 1}
	return len(key) > 0 && n[key[0]] == len(key)
}

// Usage is what the archive has of a merchant.
type Usage struct {
	Events uint64
	Stored uint64         // bytes of the blocks
	Last   store.Position // the end of the last block; zero: there was none
}

func (u *Usage) add(o Usage) {
	u.Events, u.Stored = u.Events+o.Events, u.Stored+o.Stored
	if o.Last.Compare(u.Last) > 0 {
		u.Last = o.Last
	}
}

func (u *Usage) subtract(o Usage) {
	u.Events, u.Stored = u.Events-o.Events, u.Stored-o.Stored
}

func (u Usage) encode(key []byte) []byte {
	b := binary.AppendUvarint(nil, u.Events)
	b = binary.AppendUvarint(b, 0)
	return codec.Seal(key, appendPosition(binary.AppendUvarint(b, u.Stored), u.Last))
}

func parseUsage(key, v []byte) (u Usage, err error) {
	d := codec.Decoder{B: codec.Unseal(key, v)}
	u.Events = d.Uvarint()
	d.Uvarint()
	u.Stored = d.Uvarint()
	u.Last = readPosition(&d)
	return u, d.Err("counts of a merchant")
}

func numberEntry(key []byte, n uint64) codec.Entry {
	return codec.Entry{Key: key, Value: codec.Seal(key, binary.BigEndian.AppendUint64(nil, n))}
}

func parseNumber(key, v []byte) (uint64, error) {
	b := codec.Unseal(key, v)
	if len(b) != 8 {
		return 0, fmt.Errorf("%w: a number of the archive", codec.ErrCorrupt)
	}
	return binary.BigEndian.Uint64(b), nil
}
