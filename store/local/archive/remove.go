package archive

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
)

// A removal replaces blocks by blocks with the events that stay and the same range of positions. After an error or a kill,
// the first of the events may be removed: call it again. The bytes of removed events stay in the files until Purge, or until
// compactions happen to drop them.

// blocksAtOnce is how many blocks RewriteSome reads. Nobody else writes meanwhile.
const blocksAtOnce = 100

// Remove removes events of a merchant, and returns how many of them it has found. at has their positions, in order: only the
// blocks that have one are read. It passes blocks that cannot be read to damaged; they stay as they are. It calls pace now
// and then.
func (a *Archive) Remove(ctx context.Context, m store.MerchantKey, at []store.Position, damaged func(Damage), pace func()) (removed uint64, err error) {
	keep := func(e Event) bool {
		_, goes := slices.BinarySearchFunc(at, e.Position, store.Position.Compare)
		return !goes
	}
	if len(at) == 0 {
		return 0, nil
	}
	from, to := at[0], at[len(at)-1]
	for more := true; more && err == nil; pace() {
		var some uint64
		some, from, more, err = a.RewriteSome(ctx, m, from, to, at, keep, damaged)
		removed += some
	}
	return removed, err
}

// RewriteSome removes the events of a merchant from the position from to the position to, both included, for which keep
// returns false, but only of the next few blocks: if more is true, the next call begins at after. Unless at is nil, it has
// positions in order up to to, and only the blocks that have one of them are read. RewriteSome returns how many events it has
// removed. It passes blocks that cannot be read to damaged; they stay as they are.
func (a *Archive) RewriteSome(ctx context.Context, m store.MerchantKey, from, to store.Position, at []store.Position,
	keep func(Event) bool, damaged func(Damage)) (removed uint64, after store.Position, more bool, err error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	after = from
	c, err := a.begin()
	if err != nil {
		return 0, after, false, err
	}
	r := rewrite{change: c, keep: func(e Event) bool { return e.Compare(from) < 0 || e.Compare(to) > 0 || keep(e) }}
	err = a.db.View(func(txn *badgerdb.Txn) error {
		r.txn = txn
		it := txn.NewIterator(badgerdb.IteratorOptions{Prefix: appendMerchantKey(nil, prefixBlock, m)})
		it.Seek(blockKey{merchant: m, last: from}.append(nil))
		for read := 0; it.Valid(); {
			if err := ctx.Err(); err != nil {
				return errors.Join(err, r.commit())
			}
			if read++; read > blocksAtOnce {
				more = true
				break
			}
			k, err := parseBlockKey(it.Entry().Key)
			if err != nil {
				return err
			}
			b, damage := a.coder.unpack(&c.memory, k, it.Entry().Value)
			if damage == nil && b.first.Compare(to) > 0 {
				break
			}
			if damage != nil {
				err = r.writeEmpty()
				damaged(Damage{m, before(k.last), k.last, damage})
			} else {
				err = r.filter(&loadedBlock{k, b, usageOf(k, b, it.Entry().Value)})
			}
			if err == nil && c.isFull() {
				err = r.commit()
			}
			if err != nil {
				return err
			}
			end := next(k.last)
			if after = end; after.Compare(to) > 0 {
				break
			}
			if at != nil {
				i, _ := slices.BinarySearchFunc(at, end, store.Position.Compare)
				after = at[i]
			}
			target := blockKey{merchant: m, last: after}.append(nil)
			if after == end || r.empty != nil {
				if it.Next(); !it.Valid() || bytes.Compare(it.Entry().Key, target) >= 0 {
					continue
				}
				if err := r.writeEmpty(); err != nil { // what is read next is no neighbour of it
					return err
				}
			}
			it.Seek(target)
		}
		return r.commit()
	})
	return r.removed, after, more, errors.Join(err, a.flush())
}

// rewrite replaces blocks by blocks with only the kept events. Neighbouring blocks without events become one.
type rewrite struct {
	*change
	txn     *badgerdb.Txn
	keep    func(Event) bool
	empty   *loadedBlock // the previous block, if no events are left in it: not yet written
	gone    uint64       // events removed since the last commit
	removed uint64       // events removed before that
}

func (r *rewrite) commit() error {
	if err := r.writeEmpty(); err != nil {
		return err
	}
	err := r.change.commit()
	if err == nil {
		r.removed, r.gone = r.removed+r.gone, 0
	}
	return err
}

// filter replaces a block, unless all of its events stay.
func (r *rewrite) filter(old *loadedBlock) error {
	kept := block{merchant: old.block.merchant, first: old.first}
	if err := old.each(func(e Event) bool {
		if r.keep(e) {
			kept.add(e.Position, e.Body)
		}
		return true
	}); err != nil {
		return err
	}
	kept.last = old.blockKey.last
	gone := uint64(old.events - kept.events)
	if kept.events > 0 {
		if err := r.writeEmpty(); err != nil || gone == 0 {
			return err
		}
	} else if gone == 0 && r.empty == nil {
		return nil // it had no events before, and the previous block has some
	}
	r.gone += gone
	if err := r.remove(r.txn, old.blockKey, old.usage); err != nil {
		return err
	}
	if kept.events > 0 {
		return r.add(r.txn, &kept, old.revision+1)
	}
	if r.empty != nil {
		kept.first = r.empty.first
	}
	r.empty = &loadedBlock{blockKey: old.blockKey, block: kept}
	return nil
}

// writeEmpty writes the block without events, if there is one.
func (r *rewrite) writeEmpty() error {
	e := r.empty
	if e == nil {
		return nil
	}
	r.empty = nil
	return r.add(r.txn, &e.block, e.revision+1)
}

// DropMerchant removes all events of a merchant, also those of blocks that cannot be read, and returns how many there were.
// It leaves one block without events, whose end shows how far events were removed.
func (a *Archive) DropMerchant(ctx context.Context, m store.MerchantKey) (removed uint64, err error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	c, err := a.begin()
	if err != nil {
		return 0, err
	}
	err = a.db.View(func(txn *badgerdb.Txn) error {
		it := txn.NewIterator(badgerdb.IteratorOptions{Prefix: appendMerchantKey(nil, prefixBlock, m), Reverse: true})
		var kept Usage
		for it.Seek(endOfMerchant(m)); it.Valid(); it.Next() {
			if err := ctx.Err(); err != nil {
				return errors.Join(err, c.commit())
			}
			k, err := parseBlockKey(it.Entry().Key)
			if err != nil {
				return err
			}
			var has Usage // zero when the header cannot be read
			if b, _, err := readHeader(it.Entry().Value); err == nil {
				has = usageOf(k, b, it.Entry().Value)
			}
			if err := c.remove(txn, k, has); err != nil {
				return err
			}
			if kept.Stored == 0 {
				before := c.usage[m].Stored
				if err := c.add(txn, &block{merchant: m, last: k.last}, k.revision+1); err != nil {
					return err
				}
				kept = Usage{Stored: c.usage[m].Stored - before, Last: k.last}
			}
			if c.isFull() {
				if err := c.commit(); err != nil {
					return err
				}
			}
			removed += has.Events
		}
		if kept.Stored == 0 {
			return it.Err()
		}
		if err := c.count(txn, m, func(u *Usage) { *u = kept }); err != nil { // what could not be read is gone too
			return err
		}
		return c.commit()
	})
	return removed, errors.Join(err, a.flush())
}
