package badgerdb

import (
	"bytes"
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/y"

	"mtagd/store/local/codec"
)

// To Badger's iterators, a block that cannot be read is the end of its table, and to Get it is a key that does not exist. So
// a Txn checks the blocks that a read needs. It does so before Badger reads them, where it knows them: on an error of the disk,
// Badger's memory map would end the process. Blocks between two keys that an iterator returns, of deleted keys or old versions,
// are checked before the second key is returned.

// Txn is a transaction of Badger whose reads fail when they meet damage.
type Txn struct {
	*badger.Txn
	h   *handle
	buf buffer
	bad error // the first damage
}

// found notes damage.
func (t *Txn) found(err error) error {
	if err != nil {
		t.h.met.note(err)
		if t.bad == nil {
			t.bad = err
		}
	}
	return err
}

// Set is badger.Txn.Set. It refuses a value that Badger would put into a value log.
func (t *Txn) Set(key, value []byte) error { return t.SetEntry(badger.NewEntry(key, value)) }

// SetEntry is badger.Txn.SetEntry, and refuses the same.
func (t *Txn) SetEntry(e *badger.Entry) error {
	if len(e.Value) > MaxCommitBytes {
		return badger.ErrTxnTooBig
	}
	return t.Txn.SetEntry(e)
}

// Get is badger.Txn.Get. It returns a Damage when a block that may have the key cannot be read.
func (t *Txn) Get(key []byte) (*badger.Item, error) {
	from, to, hash := y.KeyWithTs(key, math.MaxUint64), y.KeyWithTs(key, 0), y.Hash(key)
	for _, f := range *t.h.tables.Load() {
		if err := f.checkIndex(); err != nil {
			return nil, t.found(err)
		}
		if !f.covers(key, key) || len(f.filter) > 0 && !f.filter.MayContain(hash) {
			continue
		}
		for i := f.block(from); i <= f.block(to); i++ {
			if _, err := f.readBlock(i, &t.buf); err != nil {
				return nil, t.found(err)
			}
		}
	}
	return t.Txn.Get(key)
}

// covers reports whether a table may have keys from from to to, both included. A nil to is the end.
func (t *tableFile) covers(from, to []byte) bool {
	return bytes.Compare(t.largest, from) >= 0 && (to == nil || bytes.Compare(y.ParseKey(t.base(0)), to) <= 0)
}

// NewIterator returns an iterator. It must be closed.
func (t *Txn) NewIterator(opt badger.IteratorOptions) *Iterator {
	it := &Iterator{Iterator: t.Txn.NewIterator(opt), t: t, reverse: opt.Reverse, prefix: opt.Prefix, after: after(opt.Prefix)}
	for _, f := range *t.h.tables.Load() {
		if it.lost = t.found(f.checkIndex()); it.lost != nil {
			break
		}
		if f.covers(opt.Prefix, it.after) && f.version >= opt.SinceTs {
			it.spans = append(it.spans, span{f: f})
		}
	}
	return it
}

// after returns the first key after those with a prefix; nil when there is none.
func after(prefix []byte) []byte {
	for i, c := range slices.Backward(prefix) {
		if c < 0xff {
			return append(bytes.Clone(prefix[:i]), c+1)
		}
	}
	return nil
}

// Iterator is badger.Iterator. When it meets damage, it ends, and View returns a Damage.
type Iterator struct {
	*badger.Iterator
	t             *Txn
	reverse       bool
	prefix, after []byte
	spans         []span
	limit         []byte // up to this key, exclusive, the blocks of all tables are sound; nil: up to the end
	next          error  // of a block that the next step may need
	bad           error
	lost          error // of an index: nothing can be read
}

// span is a table with the range of blocks that were checked since the last seek.
type span struct {
	f      *tableFile
	lo, hi int // both included
}

// Seek is badger.Iterator.Seek.
func (it *Iterator) Seek(key []byte) {
	it.bad, it.next = it.lost, nil
	if it.lost != nil {
		return
	}
	from := key
	switch {
	case len(from) == 0 && !it.reverse:
		from = it.prefix
	case len(from) == 0 && it.reverse && it.after != nil:
		from = it.after
	}
	for i := range it.spans {
		s := &it.spans[i]
		b := s.f.blocks - 1
		if len(from) > 0 || !it.reverse {
			b = s.f.block(y.KeyWithTs(from, math.MaxUint64))
		}
		if s.lo, s.hi = b, b-1; it.reverse {
			s.lo, s.hi = b+1, b
		}
	}
	if it.check(from); it.bad == nil {
		it.move(func() { it.Iterator.Seek(key) })
	}
}

// Rewind is badger.Iterator.Rewind.
func (it *Iterator) Rewind() { it.Seek(nil) }

// Within says that only keys with a prefix are needed from the next Seek on, though the iterator may go further: damage behind them
// does not matter.
func (it *Iterator) Within(prefix []byte) { it.prefix, it.after = prefix, after(prefix) }

// Next is badger.Iterator.Next.
func (it *Iterator) Next() {
	if it.bad = it.t.found(it.next); it.bad == nil {
		it.move(it.Iterator.Next)
	}
}

// Err returns the damage at which the iterator has ended, or nil.
func (it *Iterator) Err() error { return cmp.Or(it.bad, it.lost) }

// Valid is badger.Iterator.Valid.
func (it *Iterator) Valid() bool { return it.bad == nil && it.lost == nil && it.Iterator.Valid() }

// ValidForPrefix is badger.Iterator.ValidForPrefix.
func (it *Iterator) ValidForPrefix(prefix []byte) bool {
	return it.Valid() && it.Iterator.ValidForPrefix(prefix)
}

// move calls step, and checks the blocks up to the key that it has reached.
func (it *Iterator) move(step func()) {
	for step(); it.Iterator.Valid() && string(it.Iterator.Item().Key()) == filler; {
		it.Iterator.Next()
	}
	if !it.Iterator.Valid() {
		it.checkEnd()
		return
	}
	key := it.Iterator.Item().Key()
	if !it.reverse && it.after != nil && bytes.Compare(key, it.after) >= 0 {
		it.checkEnd()
	} else if it.limit == nil || it.reverse == (bytes.Compare(key, it.limit) < 0) {
		it.check(key)
	}
}

// check checks the blocks up to a key, and the one behind it.
func (it *Iterator) check(key []byte) {
	it.limit = nil
	for i := range it.spans {
		s := &it.spans[i]
		if it.reverse {
			b := s.f.blocks - 1
			if len(key) > 0 {
				b = s.f.block(y.KeyWithTs(key, math.MaxUint64))
			}
			if it.cover(s, b, s.hi, nil); it.bad != nil {
				return
			}
			it.cover(s, max(0, b-1), max(s.hi, min(b+1, s.f.blocks-1)), &it.next)
			if s.lo > 0 {
				it.narrow(s.f.base(min(s.lo+1, s.f.blocks-1)))
			}
			continue
		}
		b := s.f.blockBefore(y.KeyWithTs(key, 0))
		if it.cover(s, s.lo, b, nil); it.bad != nil {
			return
		}
		it.cover(s, s.lo, min(b+1, s.f.blocks-1), &it.next)
		if s.hi < s.f.blocks-1 {
			it.narrow(s.f.base(max(0, s.hi)))
		}
	}
}

// narrow sets the limit to a key of a table if that is nearer.
func (it *Iterator) narrow(base []byte) {
	if key := y.ParseKey(base); it.limit == nil || it.reverse == (bytes.Compare(key, it.limit) > 0) {
		it.limit = key
	}
}

// checkEnd checks the blocks up to the end of what the iterator was asked for.
func (it *Iterator) checkEnd() {
	for i := range it.spans {
		s := &it.spans[i]
		switch {
		case it.reverse && len(it.prefix) > 0:
			it.cover(s, s.f.block(y.KeyWithTs(it.prefix, math.MaxUint64)), s.hi, nil)
		case it.reverse:
			it.cover(s, 0, s.hi, nil)
		case it.after != nil:
			it.cover(s, s.lo, s.f.blockBefore(y.KeyWithTs(it.after, math.MaxUint64)), nil)
		default:
			it.cover(s, s.lo, s.f.blocks-1, nil)
		}
	}
}

// cover checks the blocks from lo to hi that were not checked yet. It notes damage in ahead, or as damage of the read.
func (it *Iterator) cover(s *span, lo, hi int, ahead *error) {
	check := func(i int) bool {
		_, err := s.f.readBlock(i, &it.t.buf)
		switch {
		case err == nil:
			return true
		case ahead == nil:
			if it.bad == nil {
				it.bad = it.t.found(err)
			}
		case !errors.Is(err, codec.ErrCorrupt) || it.needs(s.f.base(i)):
			*ahead = err
		}
		return false
	}
	for s.hi < hi && check(s.hi+1) {
		s.hi++
	}
	for s.lo > lo && check(s.lo-1) {
		s.lo--
	}
}

// needs reports whether a block that begins with this key may have keys that the iterator was asked for.
func (it *Iterator) needs(base []byte) bool {
	return it.reverse || it.after == nil || bytes.Compare(y.ParseKey(base), it.after) < 0
}
