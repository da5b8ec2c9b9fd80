package badgerdb

import (
	"bytes"
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

// Txn is a transaction whose reads fail when they meet damage. It sees all parts; writes go to the last one.
type Txn struct {
	*badger.Txn // of the last part
	parts       []partTxn
	version     uint64
	met         *met
	buf         buffer
	first       firstEntry
	bad         error // the first damage
}

type partTxn struct {
	*part
	txn *badger.Txn
}

// View calls read with a transaction that reads as of a version. When a read has met damage, it returns a Damage.
func (d *DB) View(version uint64, read func(txn *Txn) error) error {
	parts := d.acquire()
	defer d.release(parts)
	return d.view(parts, version, read)
}

func (d *DB) view(parts []*part, version uint64, read func(txn *Txn) error) (err error) {
	txn := &Txn{version: version, met: &d.met}
	for _, h := range parts {
		txn.Txn = h.db.NewTransactionAt(version, false)
		defer txn.Txn.Discard()
		txn.parts = append(txn.parts, partTxn{h, txn.Txn})
	}
	defer func() {
		if r := recover(); r != nil { // some damage makes Badger panic
			for _, h := range parts {
				for _, t := range h.tables.Load().all {
					if _, err = t.readAll(atOnce, nil); err != nil {
						err = txn.found(err)
						return
					}
				}
			}
			panic(r)
		}
	}()
	err = read(txn)
	if txn.bad != nil && !errors.Is(err, txn.bad) {
		err = errors.Join(txn.bad, err)
	}
	return err
}

// found notes damage.
func (t *Txn) found(err error) error {
	if err != nil {
		t.met.note(err)
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

// Get returns the value of a key, as it is in the newest part that has an entry of it.
func (t *Txn) Get(key []byte) (value []byte, found bool, err error) {
	for i := range slices.Backward(t.parts) {
		if e, known, err := t.entry(i, key); known || err != nil {
			return e.value, known && e.isLive(), err
		}
	}
	return nil, false, nil
}

// entry returns the entry of a key in part i. Of the last part, Badger has some that are in no table yet.
func (t *Txn) entry(i int, key []byte) (e entry, known bool, err error) {
	h := t.parts[i]
	if e, known, err = h.tables.Load().get(key, t.version, &t.buf); err != nil {
		return e, false, t.found(err) // Badger would take damage for the end of a table
	}
	if i < len(t.parts)-1 {
		return e, known, nil
	}
	it := h.txn.NewKeyIterator(key, badger.IteratorOptions{})
	defer it.Close()
	if it.Rewind(); !it.Valid() {
		return e, known, nil
	}
	item := it.Item()
	e = entry{version: item.Version(), expiresAt: item.ExpiresAt(), deleted: item.IsDeletedOrExpired()}
	if !e.deleted {
		e.value, err = item.ValueCopy(nil)
	}
	return e, true, err
}

// First returns the first key from a key on that has a value, among those with a prefix; false when there is none. It reads only tables: the
// version of t must be that of a Flush. It costs a fraction of an iterator, which Badger seeks in every table. Key and value are valid until
// the next call.
func (t *Txn) First(from, prefix []byte) (key, value []byte, found bool, err error) {
	best := &t.first // its memory is used again
	for {
		best.upTo, best.known = t.version, false
		for _, h := range t.parts {
			if err := best.look(h.tables.Load(), from); err != nil {
				return nil, nil, false, t.found(err)
			}
		}
		if !best.known || !bytes.HasPrefix(best.key, prefix) {
			return nil, nil, false, nil
		}
		if best.isLive() {
			return best.key, best.value, true, nil
		}
		from = append(bytes.Clone(best.key), 0)
	}
}

// covers reports whether a table may have keys from from to to, both included. A nil to is the end.
func (t *tableFile) covers(from, to []byte) bool {
	return bytes.Compare(t.largest, from) >= 0 && (to == nil || bytes.Compare(t.smallest, to) <= 0)
}

func (t *Txn) newPartIterator(h partTxn, opt badger.IteratorOptions) *partIterator {
	it := &partIterator{Iterator: h.txn.NewIterator(opt), t: t, reverse: opt.Reverse, prefix: opt.Prefix, after: after(opt.Prefix)}
	for _, f := range h.tables.Load().all {
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

// partIterator is badger.Iterator. When it meets damage, it ends, and View returns a Damage.
type partIterator struct {
	*badger.Iterator
	t             *Txn
	reverse       bool
	prefix, after []byte
	spans         []span
	limit         []byte // the nearest one of the spans; nil: all blocks are sound up to the end
	next          error  // of a block that the next step may need
	bad           error
	lost          error // of an index: nothing can be read
}

// span is a table with the range of blocks that were checked since the last seek.
type span struct {
	f      *tableFile
	lo, hi int    // both included
	limit  []byte // up to this key, exclusive, its blocks are sound; nil: unknown
	whole  bool   // all blocks from the place of the seek on are sound
}

// Seek is badger.Iterator.Seek.
func (it *partIterator) Seek(key []byte) {
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
		s.limit, s.whole = nil, false
		if s.lo, s.hi = b, b-1; it.reverse {
			s.lo, s.hi = b+1, b
		}
	}
	if it.check(from); it.bad == nil {
		it.move(func() { it.Iterator.Seek(key) })
	}
}

// Rewind is badger.Iterator.Rewind.
func (it *partIterator) Rewind() { it.Seek(nil) }

// within is Iterator.Within.
func (it *partIterator) within(prefix []byte) { it.prefix, it.after = prefix, after(prefix) }

// Next is badger.Iterator.Next.
func (it *partIterator) Next() {
	if it.bad = it.t.found(it.next); it.bad == nil {
		it.move(it.Iterator.Next)
	}
}

// Valid is badger.Iterator.Valid.
func (it *partIterator) Valid() bool { return it.bad == nil && it.lost == nil && it.Iterator.Valid() }

// move calls step, and checks the blocks up to the key that it has reached.
func (it *partIterator) move(step func()) {
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
	} else if it.limit != nil && it.reverse == (bytes.Compare(key, it.limit) < 0) {
		it.check(key)
	}
}

// check checks the blocks up to a key, and the one behind it. It passes over the tables whose blocks were checked up to there: a merge
// steps through dozens of tables, and an entry of an archive is a block of its own.
func (it *partIterator) check(key []byte) {
	it.limit = nil
	for i := range it.spans {
		s := &it.spans[i]
		if s.limit == nil || it.reverse == (bytes.Compare(key, s.limit) < 0) {
			if it.checkSpan(s, key); it.bad != nil {
				return
			}
		}
		if !s.whole && (it.limit == nil || it.reverse == (bytes.Compare(s.limit, it.limit) > 0)) {
			it.limit = s.limit
		}
	}
}

func (it *partIterator) checkSpan(s *span, key []byte) {
	switch {
	case s.whole:
	case it.reverse:
		b := s.f.blocks - 1
		if len(key) > 0 {
			b = s.f.block(y.KeyWithTs(key, math.MaxUint64))
		}
		if it.cover(s, b, s.hi, nil); it.bad != nil {
			return
		}
		it.cover(s, max(0, b-1), max(s.hi, min(b+1, s.f.blocks-1)), &it.next)
		if s.whole = s.lo <= 0; !s.whole {
			s.limit = y.ParseKey(s.f.base(min(s.lo+1, s.f.blocks-1)))
		}
	default:
		b := s.hi // blocks follow each other, so this is quicker than a search
		for b+1 < s.f.blocks && bytes.Compare(y.ParseKey(s.f.base(b+1)), key) <= 0 {
			b++
		}
		if it.cover(s, s.lo, b, nil); it.bad != nil {
			return
		}
		it.cover(s, s.lo, min(b+1, s.f.blocks-1), &it.next)
		if s.whole = s.hi >= s.f.blocks-1; !s.whole {
			s.limit = y.ParseKey(s.f.base(max(0, s.hi)))
		}
	}
}

// checkEnd checks the blocks up to the end of what the iterator was asked for.
func (it *partIterator) checkEnd() {
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
func (it *partIterator) cover(s *span, lo, hi int, ahead *error) {
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
func (it *partIterator) needs(base []byte) bool {
	return it.reverse || it.after == nil || bytes.Compare(y.ParseKey(base), it.after) < 0
}
