package archive

import (
	"cmp"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
)

// change collects blocks to write and blocks to delete, with the counts of their merchants. A large change takes several
// commits; the archive is consistent after each.
type change struct {
	a        *Archive
	entries  []codec.Entry
	bytes    int                            // of the entries
	usage    map[store.MerchantKey]Usage    // of the merchants that change: reads may not see what was committed since
	changed  map[store.MerchantKey]struct{} // since the last commit
	growth   Usage                          // of all merchants; a negative growth wraps around
	boundary uint64                         // 0: stays as it is

	memory memory
}

// A commit ends when it has one of these sizes, so that little is in memory.
const (
	commitBytes   = 256 << 10
	commitEntries = 3000
)

// begin begins a change. The caller holds writing until the change has ended. The change reads what one that was cut off has
// committed.
func (a *Archive) begin() (*change, error) {
	return &change{a: a, usage: map[store.MerchantKey]Usage{}, changed: map[store.MerchantKey]struct{}{}}, cmp.Or(a.Failure(), a.flush())
}

// add writes a block.
func (c *change) add(txn *badgerdb.Txn, b *block, revision uint32) error {
	stored := c.a.coder.append(nil, b)
	c.put(codec.Entry{Key: blockKey{b.merchant, b.last, revision}.append(nil), Value: stored})
	return c.count(txn, b.merchant, func(u *Usage) { u.add(Usage{uint64(b.events), uint64(len(stored)), b.last}) })
}

func (c *change) put(e codec.Entry) {
	c.entries = append(c.entries, e)
	c.bytes += len(e.Key) + len(e.Value)
}

// remove deletes a block.
func (c *change) remove(txn *badgerdb.Txn, k blockKey, has Usage) error {
	c.put(codec.Entry{Key: k.append(nil), Deleted: true})
	return c.count(txn, k.merchant, func(u *Usage) { u.subtract(has) })
}

func (c *change) count(txn *badgerdb.Txn, m store.MerchantKey, change func(u *Usage)) error {
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
	return c.bytes >= commitBytes || len(c.entries)+len(c.changed) >= commitEntries
}

// commit writes the change so far. It is on disk, and read, after Archive.flush.
func (c *change) commit() error {
	if len(c.entries)+len(c.changed) == 0 && c.boundary == 0 {
		return nil
	}
	entries := c.entries
	for m := range c.changed {
		key := appendMerchantKey(nil, prefixMerchant, m)
		entries = append(entries, codec.Entry{Key: key, Value: c.usage[m].encode(key)})
	}
	if c.boundary > 0 {
		entries = append(entries, numberEntry(keyBoundary, c.boundary))
	}
	if err := c.a.commit(entries...); err != nil {
		return c.a.fail(err)
	}
	if c.boundary > 0 {
		c.a.moved = c.boundary
	}
	c.a.all.events.Add(int64(c.growth.Events))
	c.a.all.bytes.Add(int64(c.growth.Stored))
	c.entries, c.bytes, c.growth, c.boundary = nil, 0, Usage{}, 0
	clear(c.changed)
	return nil
}

func loadUsage(txn *badgerdb.Txn, m store.MerchantKey) (u Usage, err error) {
	key := appendMerchantKey(nil, prefixMerchant, m)
	v, found, err := txn.Get(key)
	if err == nil && found {
		u, err = parseUsage(key, v)
	}
	return u, err
}
