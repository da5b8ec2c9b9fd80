package badgerdb

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/dgraph-io/badger/v4"
)

// Iterator reads the entries of all parts in the order of their keys, or in the reverse order, like badger.Iterator. When it meets damage,
// it ends, and View returns a Damage.
//
// The newest entry of a key is in the newest part that has one. So forward, the iterators of the parts return all versions, deletions too,
// the newest first, and Iterator passes over those behind. In the reverse order Badger returns the oldest first: there the iterators return
// what is live in their part, and Iterator asks the newer parts whether they have the key.
type Iterator struct {
	t       *Txn
	all     bool // all versions, deletions too
	reverse bool
	parts   []*partIterator // the newest first
	at      int             // the part with the current item; -1: there is none
	key     []byte          // the current one
	bad     error           // the damage at which it has ended
}

// NewIterator returns an iterator. It must be closed.
func (t *Txn) NewIterator(opt badger.IteratorOptions) *Iterator {
	it := &Iterator{t: t, all: opt.AllVersions, reverse: opt.Reverse, at: -1}
	opt.AllVersions = !opt.Reverse
	for _, h := range slices.Backward(t.parts) {
		it.parts = append(it.parts, t.newPartIterator(h, opt))
	}
	return it
}

// Close releases the iterator.
func (it *Iterator) Close() {
	for _, p := range it.parts {
		p.Close()
	}
}

// Rewind goes to the first entry.
func (it *Iterator) Rewind() { it.Seek(nil) }

// Seek goes to the first entry whose key is not before a key.
func (it *Iterator) Seek(key []byte) {
	for _, p := range it.parts {
		p.Seek(key)
	}
	it.settle()
}

// Within says that only keys with a prefix are needed from the next Seek on, though the iterator may go further: damage behind them
// does not matter.
func (it *Iterator) Within(prefix []byte) {
	for _, p := range it.parts {
		p.within(prefix)
	}
}

// Err returns the damage at which the iterator has ended, or nil.
func (it *Iterator) Err() error { return it.bad }

// Next goes to the next entry.
func (it *Iterator) Next() {
	it.leave()
	it.settle()
}

// Valid reports whether there is an entry.
func (it *Iterator) Valid() bool { return it.at >= 0 }

// ValidForPrefix reports whether there is an entry whose key begins with a prefix.
func (it *Iterator) ValidForPrefix(prefix []byte) bool {
	return it.Valid() && bytes.HasPrefix(it.key, prefix)
}

// Item returns the entry, which is valid until Next.
func (it *Iterator) Item() *badger.Item { return it.parts[it.at].Item() }

// leave passes over the current entry, and unless all versions are wanted, over older ones of its key.
func (it *Iterator) leave() {
	if it.all {
		it.parts[it.at].Next()
		return
	}
	for _, p := range it.parts {
		for p.Valid() && bytes.Equal(p.Item().Key(), it.key) {
			p.Next()
		}
	}
}

// settle finds the part with the next key, and passes over keys whose newest entry is a deletion.
func (it *Iterator) settle() {
	for {
		it.at = -1
		for i, p := range it.parts {
			if it.bad = cmp.Or(p.bad, p.lost); it.bad != nil {
				it.at = -1
				return
			}
			if p.Valid() && (it.at < 0 || it.isBefore(p.Item().Key(), it.parts[it.at].Item().Key())) {
				it.at = i
			}
		}
		if it.at < 0 {
			return
		}
		it.key = it.Item().KeyCopy(it.key)
		var live bool
		if live, it.bad = it.isLive(); it.bad != nil {
			it.at = -1
			return
		}
		if it.all || live {
			return
		}
		it.leave()
	}
}

func (it *Iterator) isBefore(a, b []byte) bool {
	if it.reverse {
		return bytes.Compare(a, b) > 0
	}
	return bytes.Compare(a, b) < 0
}

// isLive reports whether the current entry is the newest one of its key, and no deletion.
func (it *Iterator) isLive() (bool, error) {
	if !it.reverse {
		return !it.Item().IsDeletedOrExpired(), nil
	}
	for i := range it.at { // newer parts, where the key is not live
		if _, known, err := it.t.entry(len(it.t.parts)-1-i, it.key); known || err != nil {
			return false, err
		}
	}
	return true, nil
}
