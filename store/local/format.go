package local

import (
	"cmp"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/dgraph-io/badger/v4"
	"github.com/google/uuid"

	"mtagd/store"
)

// eventsFormat is the version of the layout of events/. A directory of another version is refused.
const eventsFormat = "3"

// The first byte of every key in Badger. Chunks come first: what grows at the end is kept apart from the keys that lie
// anywhere, and a compaction of new ones leaves the old ones alone.
const (
	prefixChunk  = 'A'
	prefixDedupe = 'D'
	prefixFormat = 'F'
	prefixLink   = 'L'
)

// otherFormat is the error of data in a format that this version does not read.
func otherFormat(found []byte, known string) error {
	return fmt.Errorf("format %q is not known to this version, which reads %q", found, known)
}

// merchantKey is a merchant's UUID in its 16 bytes.
type merchantKey [16]byte

func newMerchantKey(id store.MerchantID) (merchantKey, error) {
	u, err := uuid.Parse(string(id))
	if err != nil {
		return merchantKey{}, store.NotFound("merchant")
	}
	return merchantKey(u), nil
}

func appendChunkKey(b []byte, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, prefixChunk), seq)
}

func parseChunkKey(k []byte) (seq uint64, err error) {
	if len(k) != 9 || k[0] != prefixChunk {
		return 0, fmt.Errorf("%w: chunk key %x", errCorrupt, k)
	}
	return binary.BigEndian.Uint64(k[1:]), nil
}

func appendLinkKey(b []byte, m merchantKey, k store.IdentityKey) []byte {
	return append(append(append(b, prefixLink), m[:]...), k[:]...)
}

func appendDedupeKey(b []byte, m merchantKey, dedupeHash [16]byte) []byte {
	return append(append(append(b, prefixDedupe), m[:]...), dedupeHash[:]...)
}

// lookup gives the value of a key to use, and reports whether the key has one.
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

// position is where an event stands: its chunk and its place in it. Positions grow in the order of
// receipt.
type position struct {
	seq   uint64
	index uint16
}

func (p position) compare(o position) int {
	return cmp.Or(cmp.Compare(p.seq, o.seq), cmp.Compare(p.index, o.index))
}

var idEncoding = base32.NewEncoding("0123456789abcdefghijklmnopqrstuv").WithPadding(base32.NoPadding)

// eventID is the public form of a position: "evt_" and the 10 bytes of the position, big endian, in
// base32 digits that sort as the bytes do.
func (p position) eventID() store.EventID {
	var b [10]byte
	binary.BigEndian.PutUint64(b[:8], p.seq)
	binary.BigEndian.PutUint16(b[8:], p.index)
	return store.EventID("evt_" + idEncoding.EncodeToString(b[:]))
}

// errCorrupt is what reading a value ends with that this package did not write.
var errCorrupt = errors.New("corrupt value")

// decoder reads the varints and length-prefixed strings of which all values are made. After the
// first failure it returns zeroes, and failed stays set.
type decoder struct {
	b      []byte
	failed bool
}

func (d *decoder) fail() { d.failed, d.b = true, nil }

// skip passes over a number of n bytes; where encoding/binary read none, n is not positive and the
// number is 0.
func (d *decoder) skip(n int) {
	if n <= 0 {
		d.fail()
		return
	}
	d.b = d.b[n:]
}

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	d.skip(n)
	return v
}

func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	d.skip(n)
	return v
}

// count reads a number of things that take at least one byte each, so that a corrupt number cannot
// ask for more memory than the value has bytes.
func (d *decoder) count() int {
	n := d.uvarint()
	if n > uint64(len(d.b)) {
		d.fail()
		return 0
	}
	return int(n)
}

// bytes returns the next n bytes, which alias the value.
func (d *decoder) bytes(n int) []byte {
	if n > len(d.b) {
		d.fail()
		return nil
	}
	v := d.b[:n:n]
	d.b = d.b[n:]
	return v
}

// prefixed returns the next length-prefixed bytes, which alias the value.
func (d *decoder) prefixed() []byte { return d.bytes(d.count()) }

func (d *decoder) err(what string) error {
	if d.failed {
		return fmt.Errorf("%w: %s", errCorrupt, what)
	}
	return nil
}

func appendPrefixed[T string | []byte](b []byte, v T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(v))), v...)
}
