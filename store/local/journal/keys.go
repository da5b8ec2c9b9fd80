package journal

import (
	"encoding/binary"
	"fmt"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// The first byte of every key.
const (
	prefixChunk     = 'A' // only in the log
	prefixDedupe    = 'E'
	prefixFormat    = 'F'
	prefixForgotten = 'B'
	prefixFlushed   = 'C' // only in the database
	prefixLink      = 'L'
	prefixFormer    = 'H'
	prefixLinked    = 'U'
)

func appendChunkKey(b []byte, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, prefixChunk), seq)
}

func parseChunkKey(k []byte) (seq uint64, err error) {
	if len(k) != 9 || k[0] != prefixChunk {
		return 0, fmt.Errorf("%w: chunk key %x", codec.ErrCorrupt, k)
	}
	return binary.BigEndian.Uint64(k[1:]), nil
}

func appendLinkKey(b []byte, m store.MerchantKey, k store.IdentityKey) []byte {
	return append(append(append(b, prefixLink), m[:]...), k[:]...)
}

// formerKeyBytes is the length of a key of a former link.
const formerKeyBytes = 1 + len(store.MerchantKey{}) + len(store.IdentityKey{}) + muidHashBytes

// muidHashBytes is how much of store.MUIDKey a key has. Links to one muid count for all others with the same bytes.
const muidHashBytes = 16

func appendFormerKey(b []byte, m store.MerchantKey, k store.IdentityKey, muid []byte) []byte {
	hash := store.MUIDKey(muid)
	return append(append(append(append(b, prefixFormer), m[:]...), k[:]...), hash[:muidHashBytes]...)
}

func appendLinkedKey(b []byte, m store.MerchantKey, muid store.IdentityKey) []byte {
	return append(append(append(b, prefixLinked), m[:]...), muid[:muidHashBytes]...)
}

func appendDedupeKey(b []byte, m store.MerchantKey, name, eventID string) []byte {
	key := store.RememberedKey(name, eventID)
	return append(append(append(b, prefixDedupe), m[:]...), key[:]...)
}
