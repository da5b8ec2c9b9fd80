package journal

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// The first byte of every key in Badger. The keys of chunks increase with time, all others are random. Chunks have a
// prefix of their own, so that a compaction of new keys need not rewrite the tables of old chunks.
const (
	prefixChunk     = 'A'
	prefixOldDedupe = 'D' // read, but no longer written
	prefixDedupe    = 'E'
	prefixFormat    = 'F'
	prefixForgotten = 'B'
	prefixFlushed   = 'C' // only in the database
	prefixLink      = 'L'
	prefixFormer    = 'H'
	prefixLinked    = 'U'
	prefixIndexed   = 'V'
	prefixFiller    = 'Z' // Purge
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

func appendLinkKey(b []byte, m codec.MerchantKey, k store.IdentityKey) []byte {
	return append(append(append(b, prefixLink), m[:]...), k[:]...)
}

// formerKeyBytes is the length of a key of a former link.
const formerKeyBytes = 1 + len(codec.MerchantKey{}) + len(store.IdentityKey{}) + muidHashBytes

// muidHashBytes is how much of store.MUIDKey is in a key. Where two muids have the same, links to one count as links to both.
const muidHashBytes = 16

func appendFormerKey(b []byte, m codec.MerchantKey, k store.IdentityKey, muid []byte) []byte {
	hash := store.MUIDKey(muid)
	return append(append(append(append(b, prefixFormer), m[:]...), k[:]...), hash[:muidHashBytes]...)
}

func appendLinkedKey(b []byte, m codec.MerchantKey, muid store.IdentityKey) []byte {
	return append(append(append(b, prefixLinked), m[:]...), muid[:muidHashBytes]...)
}

// appendDedupeKey appends the key of an event's name and event_id. A name has no zero byte (store.IsEventName).
func appendDedupeKey(b []byte, m codec.MerchantKey, name, eventID string) []byte {
	var buf [store.MaxEventNameLength + 1 + store.MaxDedupeIDLength]byte
	return appendHashKey(b, prefixDedupe, m, append(append(append(buf[:0], name...), 0), eventID...))
}

// appendOldDedupeKey appends the key by which earlier versions remembered an event_id, under any name.
func appendOldDedupeKey(b []byte, m codec.MerchantKey, eventID string) []byte {
	return appendHashKey(b, prefixOldDedupe, m, []byte(eventID))
}

func appendHashKey(b []byte, prefix byte, m codec.MerchantKey, hashed []byte) []byte {
	sum := sha256.Sum256(hashed)
	return append(append(append(b, prefix), m[:]...), sum[:16]...)
}
