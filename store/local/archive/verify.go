package archive

import (
	"context"
	"fmt"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
)

// Check is what Verify reports to. One goroutine makes all calls, and no transaction is open meanwhile.
type Check struct {
	Wrong   func(err error)                           // damage of tables, and wrong counts
	Damaged func(d Damage)                            // a block that cannot be read
	Events  func(m store.MerchantKey, events []Event) // the events of a block; valid until Events returns
	Read    func(done, total uint64)                  // events
}

// Verify checks the checksums of all tables, reads every block up to the boundary, and compares the counts of the merchants.
// Runs are added meanwhile; it may see these or not. It returns an error only when ctx ends.
func (a *Archive) Verify(ctx context.Context, c Check) error {
	if err := a.db.Check(ctx, func() {}, func(d *badgerdb.Damage) { c.Wrong(d) }); err != nil {
		return err
	}
	done, total := uint64(0), uint64(0)
	if err := a.Each(func(_ store.MerchantKey, u Usage) error { total += u.Events; return nil }); err != nil {
		c.Wrong(err)
	}
	merchants, err := a.blockMerchants()
	if err != nil {
		c.Wrong(err)
	}
	for _, m := range merchants {
		damaged := false
		err := a.Since(ctx, m, store.Position{}, func(events []Event) error {
			c.Events(m, events)
			done += uint64(len(events))
			c.Read(min(done, total), total)
			return nil
		}, func(d Damage) {
			damaged = true
			c.Damaged(d)
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			c.Wrong(err)
			continue
		}
		if err := a.compare(m); err != nil && !damaged {
			c.Wrong(err)
		}
	}
	return nil
}

// blockMerchants returns all merchants that have blocks, also those without counts.
func (a *Archive) blockMerchants() (all []store.MerchantKey, err error) {
	err = a.db.View(func(txn *badgerdb.Txn) error {
		it := txn.NewIterator(badgerdb.IteratorOptions{Prefix: []byte{prefixBlock}})
		for it.Rewind(); it.Valid(); {
			k, err := parseBlockKey(it.Entry().Key)
			if err != nil {
				return err
			}
			all = append(all, k.merchant)
			it.Seek(append(endOfMerchant(k.merchant), 0xff))
		}
		return nil
	})
	return all, err
}

// compare compares the headers of a merchant's blocks with its counts.
func (a *Archive) compare(m store.MerchantKey) error {
	var sum, counted Usage
	if err := a.db.View(func(txn *badgerdb.Txn) (err error) {
		if counted, err = loadUsage(txn, m); err != nil {
			return err
		}
		return txn.Each(context.Background(), badgerdb.IteratorOptions{Prefix: appendMerchantKey(nil, prefixBlock, m)}, func(e *codec.Entry) error {
			b, _, err := readHeader(e.Value)
			sum.add(Usage{Events: uint64(b.events), Stored: uint64(len(e.Value))})
			return err
		})
	}); err != nil {
		return err
	}
	if sum.Events != counted.Events || sum.Stored != counted.Stored {
		return fmt.Errorf("%w: merchant %s has %d events in %d bytes of blocks, but its counts say %d in %d", codec.ErrCorrupt, m.ID(),
			sum.Events, sum.Stored, counted.Events, counted.Stored)
	}
	return nil
}
