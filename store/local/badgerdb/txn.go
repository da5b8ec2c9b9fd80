package badgerdb

import (
	"errors"
	"slices"

	"github.com/dgraph-io/badger/v4/y"
)

// Txn is the transaction of a Commit, which can only write, or of a View, which reads what was flushed before, and perhaps more. A read that
// needs a damaged block fails.
type Txn struct {
	memory  *memTable // of a Commit
	tables  []*tables // of the parts, the oldest first
	version uint64
	met     *met
	buf     buffer
	cursors []*cursor // of its iterators
	bad     error     // the first damage
}

// View calls read with a transaction that reads as of a version. When a read has met damage, it returns a Damage.
func (d *DB) View(version uint64, read func(txn *Txn) error) error {
	parts := d.acquire()
	defer d.release(parts)
	return d.view(parts, version, read)
}

func (d *DB) view(parts []*part, version uint64, read func(txn *Txn) error) error {
	txn := &Txn{version: version, met: &d.met}
	for _, h := range parts {
		txn.tables = append(txn.tables, h.tables.Load())
	}
	err := read(txn)
	for _, c := range txn.cursors {
		c.run = nil
		cursors.Put(c)
	}
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

// Set gives a key a value.
func (t *Txn) Set(key, value []byte) error { return t.SetUntil(key, value, 0) }

// SetUntil is Set for a value that expires at a time, in s since 1970; 0: never.
func (t *Txn) SetUntil(key, value []byte, expiresAt uint64) error {
	if err := checkSizes(key, value); err != nil {
		return err
	}
	t.memory.add(key, entry{value: value, version: t.version, expiresAt: expiresAt})
	return nil
}

// Delete deletes a key.
func (t *Txn) Delete(key []byte) { t.memory.add(key, entry{version: t.version, deleted: true}) }

// Get returns the value of a key.
func (t *Txn) Get(key []byte) (value []byte, found bool, err error) {
	value, found, err = get(t.tables, key, t.version, &t.buf)
	return value, found, t.found(err)
}

// get returns the value of a key, as it is in the newest part that has an entry of it.
func get(parts []*tables, key []byte, upTo uint64, buf *buffer) (value []byte, found bool, err error) {
	hash := y.Hash(key)
	for _, t := range slices.Backward(parts) {
		if e, known, err := t.get(key, hash, upTo, buf); known || err != nil {
			return e.value, known && e.isLive(), err
		}
	}
	return nil, false, nil
}
