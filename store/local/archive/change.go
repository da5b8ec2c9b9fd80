package archive

import (
	"cmp"

	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
)

// change collects blocks to write and blocks to delete, with the counts of their merchants. A large change takes several commits;
// the archive is consistent after each.
type change struct {
	a        *Archive
	sets     []entry
	deletes  [][]byte
	bytes    int                            // of sets and deletes
	usage    map[codec.MerchantKey]Usage    // of the merchants that change: reads may not see what was committed since
	changed  map[codec.MerchantKey]struct{} // since the last commit
	growth   Usage                          // of all merchants; a negative growth wraps around
	boundary uint64                         // 0: stays as it is

	memory memory
}

type entry struct{ key, value []byte }

// A commit ends when it has one of these sizes, so that little is in memory.
const (
	commitBytes   = 256 << 10
	commitEntries = 3000
)

// begin begins a change. The caller holds writing until the change has ended. The change reads what one that was cut off has committed.
func (a *Archive) begin() (*change, error) {
	return &change{a: a, usage: map[codec.MerchantKey]Usage{}, changed: map[codec.MerchantKey]struct{}{}}, cmp.Or(a.Failure(), a.flush())
}

// add writes a block.
func (c *change) add(txn *badgerdb.Txn, b *block, revision uint32) error {
	key := blockKey{b.merchant, b.last, revision}.append(nil)
	stored := c.a.coder.append(nil, b)
	c.sets = append(c.sets, entry{key, stored})
	c.bytes += len(key) + len(stored)
	return c.count(txn, b.merchant, func(u *Usage) { u.add(Usage{uint64(b.events), uint64(len(stored)), b.last}) })
}

// remove deletes a block.
func (c *change) remove(txn *badgerdb.Txn, k blockKey, has Usage) error {
	c.deletes = append(c.deletes, k.append(nil))
	c.bytes += blockKeyBytes
	return c.count(txn, k.merchant, func(u *Usage) { u.subtract(has) })
}

func (c *change) count(txn *badgerdb.Txn, m codec.MerchantKey, change func(u *Usage)) error {
	u, ok := c.usage[m]
	if !ok {
		var err error
		if u, err = loadUsage(txn, m); err != nil {
			return err
		}
	}
	c.growth.subtract(u)
	change(&u)
	c.growth.add(u)
	c.usage[m] = u
	c.changed[m] = struct{}{}
	return nil
}

// isFull reports whether the change should be committed before more is added.
func (c *change) isFull() bool {
	return c.bytes >= commitBytes || len(c.sets)+len(c.deletes)+len(c.changed) >= commitEntries
}

// isEmpty reports whether there is nothing to commit.
func (c *change) isEmpty() bool {
	return len(c.sets)+len(c.deletes)+len(c.changed) == 0 && c.boundary == 0
}

// commit writes the change so far. It is on disk, and read, after Archive.flush.
func (c *change) commit() error {
	if c.isEmpty() {
		return nil
	}
	err := c.a.commit(func(txn *badgerdb.Txn) error {
		for _, k := range c.deletes {
			txn.Delete(k)
		}
		for _, e := range c.sets {
			if err := txn.Set(e.key, e.value); err != nil {
				return err
			}
		}
		for m := range c.changed {
			if err := setUsage(txn, m, c.usage[m]); err != nil {
				return err
			}
		}
		if c.boundary > 0 {
			return txn.Set(keyBoundary, encodeNumber(keyBoundary, c.boundary))
		}
		return nil
	})
	if err != nil {
		return c.a.fail(err)
	}
	if c.boundary > 0 {
		c.a.moved = c.boundary
	}
	c.a.all.events.Add(int64(c.growth.Events))
	c.a.all.bytes.Add(int64(c.growth.Stored))
	c.sets, c.deletes, c.bytes, c.growth, c.boundary = nil, nil, 0, Usage{}, 0
	clear(c.changed)
	return nil
}

func setUsage(txn *badgerdb.Txn, m codec.MerchantKey, u Usage) error {
	key := appendMerchantKey(nil, prefixMerchant, m)
	if u == (Usage{}) {
		txn.Delete(key)
		return nil
	}
	return txn.Set(key, u.encode(key))
}

func loadUsage(txn *badgerdb.Txn, m codec.MerchantKey) (u Usage, err error) {
	key := appendMerchantKey(nil, prefixMerchant, m)
	v, found, err := txn.Get(key)
	if err == nil && found {
		u, err = parseUsage(key, v)
	}
	return u, err
}
