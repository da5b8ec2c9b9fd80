package archive

import (
	"context"
	"errors"
	"math"

	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
)

// A removal replaces blocks by blocks with the events that stay and the same range of positions. After an error or a kill, the first
// of the events may be removed: call it again. The bytes of removed events stay in the files until Purge, or until compactions
// happen to drop them.

// Removed is what a removal has removed.
type Removed struct {
	Events uint64
	Bytes  uint64 // of the bodies
}

func (r *Removed) add(o Removed) { r.Events, r.Bytes = r.Events+o.Events, r.Bytes+o.Bytes }

// removedBlocks is how many blocks RewriteSome reads. Nobody else writes meanwhile.
const removedBlocks = 100

// Rewrite removes the events of a merchant from the position from to the position to, both included, for which keep returns false.
// It passes blocks that cannot be read to damaged; they stay as they are. It calls pace now and then.
func (a *Archive) Rewrite(ctx context.Context, m codec.MerchantKey, from, to codec.Position, keep func(Event) bool,
	damaged func(Damage), pace func()) (removed Removed, err error) {
	for more := true; more && err == nil; {
		var some Removed
		some, from, more, err = a.RewriteSome(ctx, m, from, to, keep, damaged)
		removed.add(some)
		pace()
	}
	return removed, err
}

// RewriteSome is Rewrite for the next few blocks. If more is true, the next call begins at after.
func (a *Archive) RewriteSome(ctx context.Context, m codec.MerchantKey, from, to codec.Position, keep func(Event) bool,
	damaged func(Damage)) (removed Removed, after codec.Position, more bool, err error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	c, err := a.begin()
	if err != nil {
		return removed, from, false, err
	}
	var uncommitted Removed
	var empty *loadedBlock // the block before, which has no events any more, and is not yet written
	err = a.viewNewest(func(txn *badgerdb.Txn) error {
		commit := func() error {
			if err := c.writeEmpty(txn, &empty); err != nil {
				return err
			}
			err := c.commit()
			if err == nil {
				removed.add(uncommitted)
				uncommitted = Removed{}
			}
			return err
		}
		it := txn.NewIterator(badgerdb.IteratorOptions{Prefix: appendMerchantKey(nil, prefixBlock, m)})
		read := 0
		for it.Seek(blockKey{merchant: m, last: from}.append(nil)); atBlock(it); it.Next() {
			if err := ctx.Err(); err != nil {
				return errors.Join(err, commit())
			}
			if read++; read > removedBlocks {
				more = true
				break
			}
			k, err := parseBlockKey(it.Item().Key())
			if err != nil {
				return err
			}
			b, err := a.unpack(&c.memory, k, it.Item().Value())
			if err != nil {
				if err := c.writeEmpty(txn, &empty); err != nil {
					return err
				}
				damaged(Damage{m, before(k.last), k.last, err})
				after = next(k.last)
				continue
			}
			if b.first.Compare(to) > 0 {
				break
			}
			old := loadedBlock{k, b, len(it.Item().Value())}
			gone, err := c.filter(txn, &old, &empty, func(e Event) bool { return e.Compare(from) < 0 || e.Compare(to) > 0 || keep(e) })
			if err != nil {
				return err
			}
			uncommitted.add(gone)
			after = next(k.last)
			if c.isFull() {
				if err := commit(); err != nil {
					return err
				}
			}
		}
		return commit()
	})
	err = errors.Join(err, a.flush())
	if after == (codec.Position{}) {
		after = from
	}
	return removed, after, more, err
}

// filter replaces a block by one with the events for which keep returns true, unless these are all. Neighbouring blocks without
// events become one.
func (c *change) filter(txn *badgerdb.Txn, old *loadedBlock, empty **loadedBlock, keep func(Event) bool) (removed Removed, err error) {
	kept, bytes := block{merchant: old.block.merchant, first: old.first}, uint64(0)
	if err := old.each(func(e Event) bool {
		if keep(e) {
			kept.add(e.Position, e.Body)
			bytes += uint64(len(e.Body))
		} else {
			removed.add(Removed{1, uint64(len(e.Body))})
		}
		return true
	}); err != nil {
		return Removed{}, err
	}
	kept.last = old.blockKey.last
	if kept.events == 0 {
		if removed.Events == 0 && *empty == nil {
			return removed, nil // a block without events that stays, unless another one is before it
		}
		if err := c.remove(txn, old.blockKey, old.usage()); err != nil {
			return Removed{}, err
		}
		if *empty != nil {
			kept.first = (*empty).first
		}
		*empty = &loadedBlock{blockKey: old.blockKey, block: kept}
		return removed, nil
	}
	if err := c.writeEmpty(txn, empty); err != nil || removed.Events == 0 {
		return Removed{}, err
	}
	if err := c.remove(txn, old.blockKey, old.usage()); err != nil {
		return Removed{}, err
	}
	return removed, c.add(txn, &kept, old.revision+1, bytes)
}

// writeEmpty writes the block without events, if there is one.
func (c *change) writeEmpty(txn *badgerdb.Txn, empty **loadedBlock) error {
	e := *empty
	if e == nil {
		return nil
	}
	*empty = nil
	return c.add(txn, &e.block, e.revision+1, 0)
}

// DropMerchant removes all events of a merchant, also those of blocks that cannot be read. It leaves one block without events,
// which says up to where the events were removed.
func (a *Archive) DropMerchant(ctx context.Context, m codec.MerchantKey) (removed Removed, err error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	c, err := a.begin()
	if err != nil {
		return removed, err
	}
	err = a.viewNewest(func(txn *badgerdb.Txn) error {
		it := txn.NewIterator(badgerdb.IteratorOptions{Prefix: appendMerchantKey(nil, prefixBlock, m), Reverse: true})
		it.Seek(blockKey{m, codec.Position{Seq: math.MaxUint64, Index: math.MaxUint16}, math.MaxUint32}.append(nil))
		if !atBlock(it) {
			return nil
		}
		last, err := parseBlockKey(it.Item().Key())
		if err != nil {
			return err
		}
		var kept Usage
		for first := true; atBlock(it); it.Next() {
			if err := ctx.Err(); err != nil {
				return errors.Join(err, c.commit())
			}
			k, err := parseBlockKey(it.Item().Key())
			if err != nil {
				return err
			}
			var has Usage // nothing when the block cannot be read
			if b, err := a.unpack(&c.memory, k, it.Item().Value()); err == nil {
				has = (&loadedBlock{k, b, len(it.Item().Value())}).usage()
			}
			if err := c.remove(txn, k, has); err != nil {
				return err
			}
			if first {
				before := c.usage[m].Stored
				if err := c.add(txn, &block{merchant: m, last: last.last}, last.revision+1, 0); err != nil {
					return err
				}
				kept, first = Usage{Stored: c.usage[m].Stored - before, Last: last.last}, false
			}
			if c.isFull() {
				if err := c.commit(); err != nil {
					return err
				}
			}
			removed.add(Removed{has.Events, has.Bytes})
		}
		if err := c.count(txn, m, func(u *Usage) { *u = kept }); err != nil { // what could not be read is gone too
			return err
		}
		return c.commit()
	})
	return removed, errors.Join(err, a.flush())
}
