package badgerdb

import (
	"context"
	"errors"
	"slices"

	"github.com/dgraph-io/badger/v4/y"

	"mtagd/store/local/codec"
)

// ErrCopied is the error of a call that would replace or purge data while a backup reads it. A later call may succeed.
var ErrCopied = errors.New("the events are being backed up")

// Snapshot is the database as of a Flush. It stays readable until Close.
type Snapshot struct {
	d      *DB
	parts  []*part
	tables []*tables // of the parts, the oldest first
}

// Snapshot returns the database as of the last Flush.
func (d *DB) Snapshot() Snapshot {
	return d.snapshotOf(d.acquire())
}

// snapshotOf returns a snapshot of acquired parts.
func (d *DB) snapshotOf(parts []*part) Snapshot {
	s := Snapshot{d: d, parts: parts}
	for _, h := range parts {
		s.tables = append(s.tables, h.tables.Load())
	}
	return s
}

// Close releases the files that only the snapshot needs.
func (s Snapshot) Close() { s.d.release(s.parts) }

// Txn reads as of one Flush. A read that needs a damaged block fails.
type Txn struct {
	tables  []*tables
	d       *DB
	buf     buffer
	cursors []*cursor // of its iterators
	bad     error     // the first damage
}

// View calls read with a transaction that reads as of the last Flush. When a read has met damage, it returns a Damage.
func (d *DB) View(read func(txn *Txn) error) error {
	s := d.Snapshot()
	defer s.Close()
	return s.View(read)
}

// View is DB.View as of the snapshot.
func (s Snapshot) View(read func(txn *Txn) error) error {
	txn := &Txn{tables: s.tables, d: s.d}
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
		t.d.noteDamage(err)
		if t.bad == nil {
			t.bad = err
		}
	}
	return err
}

// Get returns the value of a key.
func (t *Txn) Get(key []byte) (value []byte, found bool, err error) {
	value, found, err = get(t.tables, key, &t.buf)
	return value, found, t.found(err)
}

// Each calls use with what an iterator reads, until use returns an error, or ctx ends. An entry is valid until use returns.
func (t *Txn) Each(ctx context.Context, opt IteratorOptions, use func(e *codec.Entry) error) error {
	it := t.NewIterator(opt)
	for it.Rewind(); it.Valid(); it.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := use(it.Entry()); err != nil {
			return err
		}
	}
	return nil
}

// get returns the value of a key, as it is in the newest part that has an entry of it.
func get(parts []*tables, key []byte, buf *buffer) (value []byte, found bool, err error) {
	hash := y.Hash(key)
	for _, t := range slices.Backward(parts) {
		if t.filter != nil && !t.filter.mayHave(hash) {
			continue
		}
		var n newest
		for _, r := range t.runs {
			if err := r.find(key, hash, buf, &n); err != nil {
				return nil, false, err
			}
		}
		if n.known {
			return n.Value, isLive(&n.Entry), nil
		}
	}
	return nil, false, nil
}
