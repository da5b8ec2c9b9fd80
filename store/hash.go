package store

import (
	"crypto/sha256"
	"hash"
	"sync"
)

// hasher is a SHA-256, and memory for what it hashes. sha256.Sum256 allocates both.
type hasher struct {
	hash hash.Hash
	b    []byte
}

var hashers = sync.Pool{New: func() any { return &hasher{hash: sha256.New()} }}

// Hash returns the SHA-256 of what appendTo appends.
func Hash(appendTo func(b []byte) []byte) (sum [sha256.Size]byte) {
	h := hashers.Get().(*hasher)
	h.b = appendTo(h.b[:0])
	h.hash.Reset()
	h.hash.Write(h.b)
	h.b = h.hash.Sum(h.b[:0])
	copy(sum[:], h.b)
	hashers.Put(h)
	return sum
}
