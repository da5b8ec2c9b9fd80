package archive

import (
	"bytes"
	"context"
	"errors"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/codec"
)

// A removal takes blocks out of the directory, and adds blocks with what stays of their events. It also adds gaps to the log
// (log.go). After an error or a kill, some of the events may be removed, in the order of positions: call it again. What was
// removed is still in the pack files, until Purge.

// Removed is what a removal has removed.
type Removed struct {
	Events uint64
	Bytes  uint64 // of the bodies
}

func (r *Removed) add(o Removed) { r.Events, r.Bytes = r.Events+o.Events, r.Bytes+o.Bytes }

// removedBlocks is how many blocks a removal reads between two transactions.
const removedBlocks = 1000

// Rewrite removes the events of a merchant from one position to another, both included, that keep does not want. It passes
// blocks that cannot be read to damaged; they stay as they are. It calls pace between blocks.
func (a *Archive) Rewrite(ctx context.Context, m codec.MerchantKey, from, to codec.Position, keep func(Event) bool,
	damaged func(Damage), pace func()) (removed Removed, err error) {
	for more := true; more && err == nil; {
		var some Removed
		some, from, more, err = a.rewriteSome(ctx, m, from, to, keep, damaged, pace)
		removed.add(some)
	}
	return removed, err
}

// rewriteSome removes events of a few blocks, in one change. The next call goes on at next.
func (a *Archive) rewriteSome(ctx context.Context, m codec.MerchantKey, from, to codec.Position, keep func(Event) bool,
	damaged func(Damage), pace func()) (removed Removed, after codec.Position, more bool, err error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	c, err := a.begin()
	if err != nil {
		return removed, from, false, err
	}
	var blocks []placed
	if err := a.view(func(tx *bolt.Tx) (err error) {
		blocks, err = blocksFrom(tx, m, from, removedBlocks)
		return err
	}); err != nil {
		return removed, from, false, err
	}
	for _, old := range blocks {
		if err := ctx.Err(); err != nil {
			return Removed{}, from, false, c.abandon(err)
		}
		b, err := a.load(&c.memory, m, old)
		if err != nil {
			damaged(Damage{m, before(old.last), old.last, err})
			continue
		}
		if b.first.Compare(to) > 0 {
			blocks = nil
			break
		}
		gone, err := c.filter(&b, old, func(e Event) bool { return e.Compare(from) < 0 || e.Compare(to) > 0 || keep(e) })
		if err != nil {
			return Removed{}, from, false, c.abandon(err)
		}
		removed.add(gone)
		pace()
	}
	if len(blocks) > 0 {
		from = next(blocks[len(blocks)-1].last)
	}
	more = len(blocks) == removedBlocks
	if len(c.removed) == 0 {
		return removed, from, more, nil
	}
	return removed, from, more, c.commit()
}

// blocksFrom returns up to n blocks of a merchant that end at a position or after it.
func blocksFrom(tx *bolt.Tx, m codec.MerchantKey, from codec.Position, n int) (found []placed, err error) {
	blocks := tx.Bucket(bucketBlocks).Cursor()
	for k, v := blocks.Seek(appendKey(nil, m, from)); bytes.HasPrefix(k, m[:]) && len(found) < n; k, v = blocks.Next() {
		at, err := parsePlaced(k, v)
		if err != nil {
			return nil, err
		}
		found = append(found, at)
	}
	return found, nil
}

// filter replaces a block by one with the events that keep wants, unless it wants all.
func (c *change) filter(b *block, old placed, keep func(Event) bool) (removed Removed, err error) {
	kept, size := block{merchant: b.merchant}, uint64(0)
	if err := b.each(func(e Event) bool {
		if keep(e) {
			kept.add(e.Position, e.Body)
			size += uint64(len(e.Body))
		} else {
			removed.add(Removed{1, uint64(len(e.Body))})
		}
		return true
	}); err != nil || removed.Events == 0 {
		return Removed{}, err
	}
	c.remove(b.merchant, old)
	err = c.addGap(b.merchant, b.first, b.last)
	if err == nil && kept.events > 0 {
		err = c.add(&kept, size)
	}
	return removed, err
}

// DropMerchant removes all events of a merchant, also those of blocks that cannot be read.
func (a *Archive) DropMerchant(ctx context.Context, m codec.MerchantKey) (removed Removed, err error) {
	for {
		some, blocks, err := a.dropSome(ctx, m)
		removed.add(some)
		if err != nil || blocks == 0 {
			return removed, err
		}
	}
}

func (a *Archive) dropSome(ctx context.Context, m codec.MerchantKey) (removed Removed, blocks int, err error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	if err := ctx.Err(); err != nil {
		return removed, 0, err
	}
	c, err := a.begin()
	if err != nil {
		return removed, 0, err
	}
	var found []placed
	if err := a.view(func(tx *bolt.Tx) (err error) {
		found, err = blocksFrom(tx, m, codec.Position{}, 20*removedBlocks)
		return err
	}); err != nil || len(found) == 0 {
		return removed, 0, err
	}
	for _, old := range found {
		c.remove(m, old)
		removed.add(Removed{old.events, old.bytes})
	}
	if err := c.addGap(m, codec.Position{}, found[len(found)-1].last); err != nil {
		return Removed{}, 0, c.abandon(err)
	}
	if err := c.commit(); err != nil {
		return Removed{}, 0, err
	}
	return removed, len(found), nil
}

// IsBusy reports whether an error says that the archive is being copied: a later call may succeed.
func IsBusy(err error) bool { return errors.Is(err, errBusy) }
