package journal

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// The first byte of every key in Badger. The keys of chunks increase with time, all others are random. Chunks have a
// prefix of their own, so that a compaction of new keys need not rewrite the tables of old chunks.
const (
	prefixChunk  = 'A'
	prefixDedupe = 'D'
	prefixFormat = 'F'
	prefixLink   = 'L'
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

func appendDedupeKey(b []byte, m codec.MerchantKey, eventIDHash [16]byte) []byte {
	return append(append(append(b, prefixDedupe), m[:]...), eventIDHash[:]...)
}

// lookup calls use with the value of a key, and reports whether the key has one.
func lookup(txn *badger.Txn, key []byte, use func(value []byte) error) (bool, error) {
	item, err := txn.Get(key)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, item.Value(use)
}
