package badgerdb

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"sort"
	"sync"

	"github.com/dgraph-io/badger/v4/y"

	"mtagd/store/local/codec"
	"mtagd/store/merge"
)

// IteratorOptions say what an iterator reads.
type IteratorOptions struct {
	Prefix    []byte // of the keys
	Reverse   bool
	Deletions bool   // also deletions; an entry that has expired counts as one
	Since     uint64 // only entries of later versions

	each func(e *codec.Entry) // gets every entry that is read, also those with a newer one of the same key; may be nil
}

// Iterator reads the newest entry of each key, in the order of the keys or in the reverse order. It reads a block only when
// that may have the next key. When it meets damage, it ends, and View returns a Damage.
type Iterator struct {
	t      *Txn
	opt    IteratorOptions
	after  []byte // the first key behind those with the prefix; nil: there is none
	all    []*cursor
	unread merge.Sources[*cursor] // the cursors with further entries

	entry codec.Entry
	value []byte // memory for that of the entry
	valid bool
	bad   error // the damage at which it has ended
}

// NewIterator returns an iterator. Call Rewind or Seek first.
func (t *Txn) NewIterator(opt IteratorOptions) *Iterator {
	it := &Iterator{t: t, opt: opt, unread: merge.New(func(a, b *cursor) bool {
		if order := bytes.Compare(a.key(), b.key()); order != 0 {
			return order < 0 != opt.Reverse
		}
		return cmp.Or(a.part-b.part, cmp.Compare(a.run[a.table].id, b.run[b.table].id)) > 0 // of a version, the newest table counts
	})}
	for n, part := range t.tables {
		for _, r := range part.runs {
			if r = slices.DeleteFunc(slices.Clone(r), func(f *tableFile) bool { return f.version <= opt.Since }); len(r) > 0 {
				c := cursors.Get().(*cursor)
				c.part, c.run, c.reverse, c.mustSearch = n, r, opt.Reverse, true
				it.all = append(it.all, c)
			}
		}
	}
	t.cursors = append(t.cursors, it.all...)
	it.Within(opt.Prefix)
	return it
}

// Within changes the prefix of the keys. Call Rewind or Seek next.
func (it *Iterator) Within(prefix []byte) { it.opt.Prefix, it.after = prefix, after(prefix) }

// after returns the first key after those with a prefix; nil when there is none.
func after(prefix []byte) []byte {
	for i, c := range slices.Backward(prefix) {
		if c < 0xff {
			return append(bytes.Clone(prefix[:i]), c+1)
		}
	}
	return nil
}

// Rewind goes to the first entry.
func (it *Iterator) Rewind() { it.Seek(nil) }

// Seek goes to the first entry whose key is not before a key, in the order of the iterator.
func (it *Iterator) Seek(key []byte) {
	switch {
	case !it.opt.Reverse && bytes.Compare(key, it.opt.Prefix) < 0:
		key = it.opt.Prefix
	case it.opt.Reverse && it.after != nil && (len(key) == 0 || bytes.Compare(key, it.after) > 0):
		key = it.after
	}
	it.bad = nil
	it.unread.Clear()
	for _, c := range it.all {
		more, err := c.seek(key)
		if err != nil {
			it.end(err)
			return
		}
		if more {
			it.unread.Add(c)
		}
	}
	it.Next()
}

// Next goes to the next entry.
func (it *Iterator) Next() {
	for it.nextKey() && !it.valid {
	}
}

// Valid reports whether there is an entry.
func (it *Iterator) Valid() bool { return it.valid }

// Entry returns the entry. It is valid until the iterator moves.
func (it *Iterator) Entry() *codec.Entry { return &it.entry }

// Err returns the damage at which the iterator has ended, or nil.
func (it *Iterator) Err() error { return it.bad }

// end ends the iterator, with damage or with nil.
func (it *Iterator) end(damage error) {
	it.valid = false
	it.unread.Clear()
	it.bad = it.t.found(damage)
}

// nextKey passes the entries of the next key, and keeps the newest one that is wanted, if any. It returns false at the end.
func (it *Iterator) nextKey() (more bool) {
	it.valid = false
	known := false
	for c, ok := it.unread.First(); ok; c, ok = it.unread.First() {
		key := c.key()
		if known && !bytes.Equal(key, it.entry.Key) {
			break
		}
		if it.isBehind(key) {
			it.end(nil)
			return false
		}
		more, err := true, error(nil)
		if !c.loaded {
			more, err = c.load()
		} else {
			it.entry.Key, known = append(it.entry.Key[:0], key...), true
			it.take(&c.entries[c.at])
			c.mustSearch = true
			more, err = c.next()
		}
		switch {
		case err != nil:
			it.end(err)
			return false
		case more:
			it.unread.Moved()
		default:
			it.unread.RemoveFirst()
		}
	}
	if it.valid && !isLive(&it.entry) {
		it.entry.Value, it.entry.Deleted = nil, true
		it.valid = it.opt.Deletions
	}
	return known
}

// take keeps an entry of the current key if it is wanted, and newer than the entry that was kept before.
func (it *Iterator) take(e *codec.Entry) {
	if e.Version <= it.opt.Since || string(e.Key) == filler ||
		it.after != nil && bytes.Compare(e.Key, it.after) >= 0 { // where a reverse iterator begins
		return
	}
	if it.opt.each != nil {
		it.opt.each(e)
	}
	if !it.valid || e.Version > it.entry.Version {
		it.value = append(it.value[:0], e.Value...)
		it.entry, it.valid = codec.Entry{Key: it.entry.Key, Value: it.value, Version: e.Version, ExpiresAt: e.ExpiresAt, Deleted: e.Deleted}, true
	}
}

// isBehind reports whether a key, and all that follow, do not have the prefix.
func (it *Iterator) isBehind(key []byte) bool {
	if it.opt.Reverse {
		return bytes.Compare(key, it.opt.Prefix) < 0
	}
	return it.after != nil && bytes.Compare(key, it.after) >= 0
}

// cursor goes through the entries of a run.
type cursor struct {
	part    int // the newest one has the greatest number
	run     run
	reverse bool

	table, block int
	from         []byte // entries before this key do not count: that of the last seek
	mustSearch   bool   // false: no entry from this key on was passed, so a seek forward may stay
	loaded       bool   // else the block is not read yet: its keys are not before bound
	bound        []byte
	entries      []codec.Entry // of the block
	at           int

	keys []byte
	buf  buffer
}

// cursors are reused for their memory, when their transaction has ended.
var cursors = sync.Pool{New: func() any { return new(cursor) }}

// key returns the next key, or one that is not behind it.
func (c *cursor) key() []byte {
	if c.loaded {
		return c.entries[c.at].Key
	}
	return c.bound
}

// seek goes to a key; backwards, an empty one is the end. It returns false when no entry follows. A forward cursor that has
// passed nothing since its last seek, and whose next key is not before the new one, stays there and reads nothing: of the many
// tables of an archive, few have the events of a page.
func (c *cursor) seek(key []byte) (more bool, err error) {
	isThere := !c.mustSearch && bytes.Compare(c.from, key) <= 0 && bytes.Compare(key, c.key()) <= 0
	c.from = append(c.from[:0], key...)
	if !isThere {
		more, err = c.search()
		c.mustSearch = !more || c.reverse
	}
	return more || isThere, err
}

// search is seek to the key from.
func (c *cursor) search() (more bool, err error) {
	key := c.from
	if c.reverse {
		c.table = len(c.run) - 1
		if len(key) > 0 {
			c.table = sort.Search(len(c.run), func(i int) bool { return bytes.Compare(c.run[i].smallest, key) > 0 }) - 1
		}
		if c.table < 0 {
			return false, nil
		}
		t := c.run[c.table]
		if c.block = t.blocks - 1; len(key) > 0 {
			c.block = t.block(y.KeyWithTs(key, 0))
		}
		return c.enter()
	}
	if c.table = sort.Search(len(c.run), func(i int) bool { return bytes.Compare(c.run[i].largest, key) >= 0 }); c.table == len(c.run) {
		return false, nil
	}
	c.block = c.run[c.table].block(y.KeyWithTs(key, math.MaxUint64))
	return c.enter()
}

// enter goes to a block. A forward cursor does not read the block before its first key may be the next one.
func (c *cursor) enter() (more bool, err error) {
	if c.loaded = false; c.reverse {
		return c.load()
	}
	if c.bound = y.ParseKey(c.run[c.table].place(c.block).key); bytes.Compare(c.bound, c.from) < 0 {
		c.bound = c.from
	}
	return true, nil
}

// load reads the block, and goes to the next one when it has no more entries.
func (c *cursor) load() (more bool, err error) {
	t := c.run[c.table]
	b, err := t.readBlock(c.block, &c.buf)
	if err != nil {
		return false, err
	}
	c.entries, c.keys = c.entries[:0], c.keys[:0]
	if err := eachInBlock(b, func(key []byte, v y.ValueStruct) {
		c.keys = append(c.keys, y.ParseKey(key)...)
		c.entries = append(c.entries, entryOf(key, v))
	}); err != nil {
		return false, &Damage{t.path, err}
	}
	at := 0
	for i := range c.entries {
		e := &c.entries[i]
		e.Key = c.keys[at : at+len(e.Key)]
		at += len(e.Key)
	}
	switch c.at = 0; {
	case !c.reverse:
		c.at = sort.Search(len(c.entries), func(i int) bool { return bytes.Compare(c.entries[i].Key, c.from) >= 0 }) - 1
	case len(c.from) == 0:
		c.at = len(c.entries)
	default:
		c.at = sort.Search(len(c.entries), func(i int) bool { return bytes.Compare(c.entries[i].Key, c.from) > 0 })
	}
	c.loaded = true
	return c.next()
}

// next goes to the next entry.
func (c *cursor) next() (more bool, err error) {
	step := 1
	if c.reverse {
		step = -1
	}
	if c.at += step; c.at >= 0 && c.at < len(c.entries) {
		return true, nil
	}
	if c.block += step; c.block >= 0 && c.block < c.run[c.table].blocks {
		return c.enter()
	}
	if c.table += step; c.table < 0 || c.table == len(c.run) {
		c.mustSearch = true
		return false, nil
	}
	if c.block = 0; c.reverse {
		c.block = c.run[c.table].blocks - 1
	}
	return c.enter()
}
