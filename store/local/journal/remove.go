package journal

import (
	"context"
	"errors"
	"math"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// Barrier returns the number of the last chunk on disk. A mark that Suppressed let pass before the call is in it or in an
// earlier one.
func (j *Journal) Barrier() (seq uint64) {
	j.committer.writing.Lock()
	defer j.committer.writing.Unlock()
	return j.Committed()
}

// eachOf calls use with all entries whose keys begin with a prefix, beginning at the key from, until use returns an error.
func (j *Journal) eachOf(ctx context.Context, prefix, from []byte, use func(item *badger.Item) error) error {
	return catchFault(func() error {
		blocks := damagedBlocks.Load()
		txn := j.db.NewTransactionAt(math.MaxUint64, false)
		defer txn.Discard()
		it := txn.NewIterator(badger.IteratorOptions{Prefix: prefix})
		defer it.Close()
		n := 0
		for it.Seek(from); it.Valid(); it.Next() {
			if n++; n%1024 == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			if err := use(it.Item()); err != nil {
				return err
			}
		}
		if damagedBlocks.Load() != blocks {
			return errDamagedBlock
		}
		return nil
	})
}

// Remembered is an event whose event_id may be remembered.
type Remembered struct{ Name, EventID string }

// Remove removes links and remembered event_ids of a merchant. When it returns nil, that is on
// disk. Their bytes stay in the files until Purge.
func (j *Journal) Remove(m codec.MerchantKey, links []store.Link, remembered []Remembered) error {
	var keys [][]byte
	for _, r := range remembered {
		keys = append(keys, appendDedupeKey(nil, m, r.Name, r.EventID))
		if j.committer.oldDedupe {
			keys = append(keys, appendOldDedupeKey(nil, m, r.EventID))
		}
	}
	return errors.Join(
		changeEach(j, links, func(t *transaction, l store.Link) error { return t.removeLink(m, l) }),
		changeEach(j, keys, (*transaction).delete))
}

// RemoveMerchant removes all links and remembered event_ids of a merchant, as Remove does. It calls pace now and then.
func (j *Journal) RemoveMerchant(ctx context.Context, m codec.MerchantKey, pace func()) error {
	for _, prefix := range []byte{prefixLink, prefixFormer, prefixLinked, prefixDedupe, prefixOldDedupe} {
		var keys [][]byte
		if err := j.eachOf(ctx, append([]byte{prefix}, m[:]...), nil, func(item *badger.Item) error {
			if keys = append(keys, item.KeyCopy(nil)); len(keys) < 10_000 {
				return nil
			}
			pace()
			err := changeEach(j, keys, (*transaction).delete)
			keys = keys[:0]
			return err
		}); err != nil {
			return err
		}
		if err := changeEach(j, keys, (*transaction).delete); err != nil {
			return err
		}
	}
	return nil
}

// changeEach makes a change for each of some items, in one or more transactions.
func changeEach[T any](j *Journal, items []T, make func(*transaction, T) error) error {
	return catchFault(func() error {
		for len(items) > 0 {
			if err := j.committer.edit(func(t *transaction) error {
				for len(items) > 0 && !t.isFull() {
					if err := make(t, items[0]); err != nil {
						return err
					}
					items = items[1:]
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
}
