package journal

import (
	"cmp"
	"context"
	"errors"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
)

// Barrier returns the number of the last chunk on disk. A mark that Options.Refuses let pass before the call is in it or in
// an earlier one.
func (j *Journal) Barrier() (seq uint64) {
	defer j.holdCommits()()
	return j.Committed()
}

// Remembered is an event whose event_id may be remembered.
type Remembered struct{ Name, EventID string }

// Remove removes links and remembered event_ids of a merchant. When it returns nil, that is on
// disk. Their bytes stay in the files until Purge.
func (j *Journal) Remove(m store.MerchantKey, links []store.Link, remembered []Remembered) error {
	var keys [][]byte
	for _, r := range remembered {
		keys = append(keys, appendDedupeKey(nil, m, r.Name, r.EventID))
	}
	return errors.Join(
		changeEach(j, links, func(t *transaction, l store.Link) error { return t.removeLink(m, l) }),
		j.deleteKeys(keys))
}

// RemoveMerchant removes all links and remembered event_ids of a merchant, as Remove does. It calls pace now and then.
func (j *Journal) RemoveMerchant(ctx context.Context, m store.MerchantKey, pace func()) error {
	if err := j.flush(); err != nil {
		return err
	}
	for _, prefix := range []byte{prefixLink, prefixFormer, prefixLinked, prefixDedupe} {
		var keys [][]byte
		if err := j.keys.each(ctx, append([]byte{prefix}, m[:]...), 0, func(key, _ []byte) error {
			if keys = append(keys, key); len(keys) < 10_000 {
				return nil
			}
			pace()
			err := j.deleteKeys(keys)
			keys = keys[:0]
			return err
		}); err != nil {
			return err
		}
		if err := j.deleteKeys(keys); err != nil {
			return err
		}
	}
	return nil
}

func (j *Journal) deleteKeys(keys [][]byte) error {
	return changeEach(j, keys, func(t *transaction, key []byte) error {
		t.delete(key)
		return nil
	})
}

// changeEach makes a change for each of some items, in one or more transactions. It fails when the database is full.
func changeEach[T any](j *Journal, items []T, make func(*transaction, T) error) error {
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
		if j.keys.inMemory() > j.maxEntries { // tidy is slower, or fails
			if err := j.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Purge removes the bytes of deleted and replaced entries from the files: links, remembered event_ids, and chunks.
// Afterwards, no file of the journal has a byte of what was deleted or replaced before the call. forget must delete all
// chunks up to the one that it gets: then the records that were there before the call are not needed, and their files go.
// Purge fails with badgerdb.ErrCopied while a backup reads the journal.
func (j *Journal) Purge(ctx context.Context, forget func(seq uint64) error) error {
	if err := j.log.Roll(); err != nil {
		return err
	}
	barrier := j.Barrier()
	if err := forget(barrier); err != nil {
		return err
	}
	j.copying.Lock()
	defer j.copying.Unlock()
	if j.copies > 0 {
		return badgerdb.ErrCopied
	}
	if err := cmp.Or(ctx.Err(), j.flush()); err != nil {
		return err
	}
	if forgotten, err := j.Forgotten(); err != nil || forgotten < barrier {
		return errors.Join(err, errors.New("events of the log were not archived yet"))
	}
	if err := j.keys.db.CompactAndWait(ctx, func() {}); err != nil {
		return err
	}
	j.forgetRecent()
	return j.log.Trim(j.needed())
}
