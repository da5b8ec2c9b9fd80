package archive

import (
	"context"
	"fmt"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
)

// Snapshot is the archive as of one commit. Until Close, Badger keeps what it needs, and Purge fails.
type Snapshot struct {
	Boundary uint64
	Events   int
	Version  uint64 // of the last commit
	Purged   uint64 // a copy as of this version, or an earlier one, cannot be continued
	a        *Archive
	db       badgerdb.Snapshot
}

// Snapshot returns the archive as of the last commit. It waits for a change that is being made.
func (a *Archive) Snapshot() (s Snapshot, err error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	if err := a.flush(); err != nil { // or after a kill, other commits would get the versions that a copy has
		return Snapshot{}, err
	}
	s = Snapshot{Boundary: a.Boundary(), Events: a.Events(), Version: a.last, a: a, db: a.db.Snapshot()}
	if err := s.db.View(func(txn *badgerdb.Txn) error {
		s.Purged, err = getNumber(txn, keyPurged)
		return err
	}); err != nil {
		s.db.Close()
		return Snapshot{}, err
	}
	a.snapshots++
	return s, nil
}

// Close lets Badger drop what only the snapshot needed. It does nothing for the zero value.
func (s Snapshot) Close() {
	if s.a != nil {
		s.a.writing.Lock()
		defer s.a.writing.Unlock()
		s.a.snapshots--
		s.db.Close()
	}
}

// Size returns about how many bytes all entries have.
func (s Snapshot) Size() int64 { return s.a.all.bytes.Load() }

// Blocks calls use with the blocks that were written after the commit since, and how many events each has. An entry is valid
// until use returns. Deletions are left out: a block that replaces others says so (Writer). A block that is damaged is passed
// to damaged. A damaged table makes Blocks fail, because it is not known which blocks the table had. Missing blocks make it
// fail, too. It finds them by the merchants' counts of events if since is 0, else by gaps in the events after the chunk newer.
func (s Snapshot) Blocks(ctx context.Context, since, newer uint64, use func(e codec.Entry, events int) error, damaged func(error)) error {
	return s.db.View(func(txn *badgerdb.Txn) error {
		events, sound := uint64(0), true
		if err := txn.Each(ctx, badgerdb.IteratorOptions{Prefix: []byte{prefixBlock}, Since: since}, func(e *codec.Entry) error {
			n, err := CheckBlock(*e)
			if err != nil {
				sound = false
				damaged(err)
				return nil
			}
			events += uint64(n)
			return use(*e, n)
		}); err != nil {
			return err
		}
		if since > 0 {
			return s.a.checkNewBlocks(txn, since, newer)
		}
		if !sound {
			return nil
		}
		return eachUsage(txn, 0, func(_ store.MerchantKey, u Usage) error {
			if events < u.Events {
				return fmt.Errorf("%w: the archive has fewer events than its counts say", codec.ErrCorrupt)
			}
			events -= u.Events
			return nil
		})
	})
}

// checkNewBlocks returns an error when a block behind the chunk newer is missing, of a merchant that has changed after the
// commit since.
func (a *Archive) checkNewBlocks(txn *badgerdb.Txn, since, newer uint64) error {
	return eachUsage(txn, since, func(m store.MerchantKey, _ Usage) error {
		var gaps []Damage
		err := a.eachBlock(txn, txn.NewIterator(badgerdb.IteratorOptions{}), m, store.EndOf(newer), newestPosition, &gaps,
			func(blockKey, []byte) bool { return true })
		if err == nil && gaps != nil {
			err = fmt.Errorf("%w: of merchant %s, after event %s", errGap, m.ID(), gaps[0].After.EventID())
		}
		return err
	})
}

// CheckBlock decodes the entry of a block, and returns its number of events.
func CheckBlock(e codec.Entry) (events int, err error) {
	c, err := checker()
	if err != nil {
		return 0, err
	}
	k, err := parseBlockKey(e.Key)
	if err != nil {
		return 0, err
	}
	b, err := c.unpack(new(memory), k, e.Value)
	if err == nil {
		err = b.each(func(Event) bool { return true })
	}
	return b.events, err
}
