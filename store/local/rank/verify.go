package rank

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
)

// Check is what Verify reports to. One goroutine makes all calls, and no transaction is open meanwhile.
type Check struct {
	Wrong func(m store.MerchantKey, err error)            // m is zero when it concerns the whole file
	Event func(m store.MerchantKey, k Key, series string) // each event in the stored trees; series as it is counted
	Tags  func(m store.MerchantKey, series []string)      // the series of each merchant's stored tree
	Read  func(done, total uint64)                        // after each short read
}

// OpenReadOnly opens an existing index for Verify, ScanEvents and Covered. Other methods must not be called, except Close.
func OpenReadOnly(path string) (*Index, error) {
	db, err := openFile(path, bolt.Options{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	x := &Index{db: db}
	if x.covered, err = x.StoredUpTo(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return x, nil
}

// StoredUpTo returns the number of a chunk: the stored trees have the events of all chunks up to it.
func (x *Index) StoredUpTo() (covered uint64, err error) {
	err = x.db.View(func(tx *bolt.Tx) error {
		b := loadMeta(tx, keyCovered)
		if len(b) != 8 {
			return fmt.Errorf("index.db: %w: the number of the last chunk in the stored trees", codec.ErrCorrupt)
		}
		covered = binary.BigEndian.Uint64(b)
		return nil
	})
	return covered, err
}

// Verify checks pages, records, and the order and the counts of the stored trees. Events are applied and merged meanwhile;
// the trees have at least those up to StoredUpTo before the call. It fails only when ctx ends.
func (x *Index) Verify(ctx context.Context, c Check) error {
	v := verifier{x: x, ctx: ctx, Check: c}
	if err := boltfile.Check(x.db); err != nil {
		c.Wrong(store.MerchantKey{}, err)
	}
	merchants, err := x.StoredMerchants()
	if err != nil {
		c.Wrong(store.MerchantKey{}, err)
	}
	if v.total, err = x.countEvents(func(error) {}); err != nil { // verifying the merchant finds the damage again
		c.Wrong(store.MerchantKey{}, err)
	}
	for _, m := range merchants {
		if err := v.merchant(m); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			c.Wrong(m, err)
		}
	}
	return ctx.Err()
}

// ScanEvents calls use with the events in a merchant's stored tree, in the order of their keys; series is as it is counted.
// An event that is stored or removed meanwhile may be among them or not.
func (x *Index) ScanEvents(ctx context.Context, m store.MerchantKey, use func(k Key, series string)) error {
	_, err := scan(ctx, x.db, m, times, func(e *entry, series []string) { use(e.Key, series[e.series]) })
	return err
}

// verifier verifies one merchant after the other.
type verifier struct {
	Check
	x   *Index
	ctx context.Context

	done, total uint64 // entries
	reads       int
}

// merchant verifies a merchant's stored trees.
func (v *verifier) merchant(m store.MerchantKey) error {
	known := 0 // series
	for tree, more := times, true; more; tree++ {
		var err error
		if more, err = scan(v.ctx, v.x.db, m, tree, func(e *entry, series []string) {
			if v.reads++; v.reads%4096 == 0 {
				v.Read(min(v.done, v.total), v.total)
			}
			if tree > times {
				return
			}
			if len(series) != known {
				known = len(series)
				v.Tags(m, series)
			}
			v.Event(m, e.Key, series[e.series])
			v.done++
		}); err != nil {
			return err
		}
	}
	v.Read(min(v.done, v.total), v.total)
	return v.x.db.View(func(tx *bolt.Tx) error {
		t, err := loadTree(tx, m)
		if err != nil {
			return err
		}
		return t.check()
	})
}

// StoredMerchants returns the merchants that have a stored tree.
func (x *Index) StoredMerchants() (all []store.MerchantKey, err error) {
	err = x.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketRoots).ForEach(func(k, _ []byte) error {
			all = append(all, store.MerchantKey(k))
			return nil
		})
	})
	return all, err
}

// times is the number of the tree of times, for scan. The runs follow.
const times = 0

// scannedLeaves is how many leaves a transaction of scan reads. A longer one would keep bbolt from reusing pages.
const scannedLeaves = 64

// scan calls use with all events of one of a merchant's stored trees, in their order, and with the merchant's series: of
// the tree of times, or of a run. It checks what the nodes say of those below them. An event that is stored or removed
// meanwhile may be among them or not. No transaction is open while use runs. more is false when there is no such tree.
func scan(ctx context.Context, db *boltfile.DB, m store.MerchantKey, tree int, use func(e *entry, series []string)) (more bool, err error) {
	s := scanner{m: m}
	for s.leaves <= 0 {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		s.leaves, s.entries = scannedLeaves, s.entries[:0]
		if err := db.View(func(tx *bolt.Tx) error {
			t, err := loadTree(tx, m)
			if err != nil {
				return err
			}
			root := &t.root
			if more = tree <= len(t.runs); more && tree > times {
				root = &t.runs[tree-1].root
			}
			if !more || root.isEmpty() {
				return nil
			}
			s.nodes, s.arena, s.series = tx.Bucket(bucketNodes), &nodeArena{}, t.series
			return s.scan(root, nil)
		}); err != nil {
			return false, err
		}
		for i := range s.entries {
			use(&s.entries[i], s.series)
		}
	}
	return more, nil
}

// scanner reads a part of a tree in one transaction.
type scanner struct {
	m       store.MerchantKey
	nodes   *bolt.Bucket
	arena   *nodeArena
	series  []string
	begun   bool
	last    entry // entries up to it were read already
	leaves  int   // how many more may be read
	entries []entry
}

// scan reads the node of c and those below it. No entry below c may be at or after end, unless that is nil.
func (s *scanner) scan(c *child, end *entry) error {
	bad := func(problem string) error {
		return fmt.Errorf("index.db: %w: node %d of merchant %s %s", codec.ErrCorrupt, c.id, s.m.ID(), problem)
	}
	n, err := loadNode(s.nodes, s.m, c.id, s.arena)
	if err != nil {
		return err
	}
	if n.isEmpty() {
		return bad("is empty")
	}
	if is := newChild(n); !slices.Equal(is.counts, c.counts) || is.bytes != c.bytes || is.first.compare(&c.first) < 0 {
		return bad("has other events than its parent says")
	}
	if n.children == nil {
		s.leaves--
	}
	for i, e := range n.entries {
		switch {
		case e.series == 0 || int(e.series) >= len(s.series):
			return bad("has an event of an unknown series")
		case i > 0 && n.entries[i-1].compare(&e) >= 0 || end != nil && e.compare(end) >= 0:
			return bad("has events in a wrong order")
		case !s.begun || e.compare(&s.last) > 0:
			s.entries = append(s.entries, e)
			s.begun, s.last = true, e
		}
	}
	for i := range n.children {
		next := end
		if i+1 < len(n.children) {
			next = &n.children[i+1].first
		}
		if next != nil && n.children[i].first.compare(next) >= 0 {
			return bad("has children in a wrong order")
		}
		if s.begun && next != nil && next.compare(&s.last) <= 0 {
			continue // read already
		}
		if s.leaves <= 0 {
			return nil
		}
		if err := s.scan(&n.children[i], next); err != nil {
			return err
		}
	}
	return nil
}
