package rank

import (
	"context"
	"errors"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
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
	err = x.db.View(func(tx *bolt.Tx) (err error) {
		covered, err = loadCovered(tx)
		return err
	})
	return covered, err
}

// Verify checks what is stored: pages, records, and the order and the counts of the trees. Events are applied and
// merged meanwhile; the stored trees that it sees have at least the events up to StoredUpTo before the call. It returns
// an error only when ctx ends.
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
			if v.read(); tree > times {
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

// read reports the progress now and then.
func (v *verifier) read() {
	if v.reads++; v.reads%4096 == 0 {
		v.Read(min(v.done, v.total), v.total)
	}
}
