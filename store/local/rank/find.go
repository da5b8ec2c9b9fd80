package rank

import (
	"context"
	"math"
	"sort"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
)

// FindChunks returns the keys of all events in these chunks, by merchant. Without merchants it looks at all of them. It reads
// all their stored events, as the trees are ordered by time; events are applied and merged meanwhile. Call it between Start
// and Close.
func (x *Index) FindChunks(
	ctx context.Context, chunks []uint64, merchants ...codec.MerchantKey,
) (map[codec.MerchantKey][]Key, error) {
	if err := x.Merge(ctx); err != nil {
		return nil, err
	}
	found := map[codec.MerchantKey][]Key{}
	wanted := make(map[uint64]bool, len(chunks))
	for _, c := range chunks {
		wanted[c] = true
	}
	err := boltfile.CatchDamage("index.db", func() (err error) {
		if merchants == nil {
			if merchants, err = x.storedMerchants(); err != nil {
				return err
			}
		}
		for _, m := range merchants {
			if err := x.scan(ctx, m, func(e *entry) {
				if wanted[e.Seq] {
					found[m] = append(found[m], e.Key)
				}
			}); err != nil {
				return err
			}
		}
		return nil
	})
	return found, err
}

// storedMerchants returns the merchants that have a stored tree.
func (x *Index) storedMerchants() (all []codec.MerchantKey, err error) {
	err = x.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketRoots).ForEach(func(k, _ []byte) error {
			all = append(all, codec.MerchantKey(k))
			return nil
		})
	})
	return all, err
}

// scannedLeaves is how many leaves a transaction of scan reads. A longer one would keep bbolt from reusing pages.
const scannedLeaves = 64

// scan calls use with all entries of a merchant's stored tree, in their order. An event that is stored or removed meanwhile
// may be among them or not.
func (x *Index) scan(ctx context.Context, m codec.MerchantKey, use func(e *entry)) error {
	s := scanner{after: Key{Time: math.MinInt64}, use: use, leaves: 0}
	for s.leaves == 0 {
		s.leaves = scannedLeaves
		if err := x.viewStored(ctx, m, func(r *reader, t *storedTree) error {
			s.reader = r
			return s.scan(&t.root)
		}); err != nil {
			return err
		}
	}
	return nil
}

// scanner reads the entries of a tree after a key.
type scanner struct {
	*reader
	after  Key // of the last entry that was used
	leaves int // how many more may be read
	use    func(e *entry)
}

func (s *scanner) scan(c *child) error {
	n, err := s.node(c)
	if err != nil {
		return err
	}
	if n.children == nil {
		for i := range n.entries {
			if e := &n.entries[i]; e.compare(s.after) > 0 {
				s.use(e)
				s.after = e.Key
			}
		}
		s.leaves--
		return nil
	}
	from := max(0, sort.Search(len(n.children), func(i int) bool { return n.children[i].first.compare(s.after) > 0 })-1)
	for i := from; i < len(n.children) && s.leaves > 0; i++ {
		if err := s.scan(&n.children[i]); err != nil {
			return err
		}
	}
	return nil
}
