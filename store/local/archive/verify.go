package archive

import (
	"context"
	"fmt"
	"maps"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
)

// Check is what Verify reports to. One goroutine makes all calls, and no transaction is open meanwhile.
type Check struct {
	Wrong   func(err error)                           // damage of the directory
	Damaged func(d Damage)                            // a block that cannot be read
	Events  func(m codec.MerchantKey, events []Event) // the events of a block; valid until Events returns
	Read    func(done, total uint64)                  // events
}

// Verify checks the directory, and reads every block. Runs are added meanwhile; it may see these or not. It returns an error
// only when ctx ends.
func (a *Archive) Verify(ctx context.Context, c Check) (blocks uint64, err error) {
	boltfile.Check(a.db, c.Wrong)
	total := uint64(0)
	var wrong []error
	if err := a.view(func(tx *bolt.Tx) (err error) {
		blocks, total, err = checkDirectory(tx, func(err error) { wrong = append(wrong, err) })
		return err
	}); err != nil {
		wrong = append(wrong, err)
	}
	for _, err := range wrong {
		c.Wrong(err)
	}
	merchants, err := a.Merchants()
	if err != nil {
		c.Wrong(err)
	}
	done := uint64(0)
	for _, m := range merchants {
		err := a.Since(ctx, m, codec.Position{}, func(events []Event) error {
			c.Events(m, events)
			done += uint64(len(events))
			c.Read(min(done, total), total)
			return nil
		}, c.Damaged)
		if ctx.Err() != nil {
			return blocks, ctx.Err()
		}
		if err != nil {
			c.Wrong(err)
		}
	}
	return blocks, nil
}

// checkDirectory decodes every record, and compares the sums of the blocks with the records of merchants and files.
func checkDirectory(tx *bolt.Tx, wrong func(error)) (blocks, events uint64, err error) {
	merchants := map[codec.MerchantKey]merchantRecord{}
	live := map[uint32]int64{}
	if err := tx.Bucket(bucketBlocks).ForEach(func(k, v []byte) error {
		blocks++
		m, _, err := parseKey(k)
		var at placed
		if err == nil {
			at, err = parsePlaced(k, v)
		}
		if err != nil {
			wrong(err)
			return nil
		}
		events += at.events
		r := merchants[m]
		merchants[m] = merchantRecord{r.events + at.events, r.bytes + at.bytes, r.stored + uint64(at.length)}
		live[at.file] += at.length
		return nil
	}); err != nil {
		return blocks, events, err
	}
	if err := tx.Bucket(bucketMerchants).ForEach(func(k, v []byte) error {
		r, err := parseMerchant(v)
		if err == nil && (len(k) != len(codec.MerchantKey{}) || merchants[codec.MerchantKey(k)] != r) {
			err = fmt.Errorf("%w: the sums of merchant %x are wrong", codec.ErrCorrupt, k)
		}
		if err != nil {
			wrong(err)
		} else {
			delete(merchants, codec.MerchantKey(k))
		}
		return nil
	}); err != nil {
		return blocks, events, err
	}
	for m := range maps.Keys(merchants) {
		wrong(fmt.Errorf("%w: merchant %s has blocks, but no record that fits them", codec.ErrCorrupt, m.ID()))
	}
	files, err := loadFiles(tx)
	if err != nil {
		return blocks, events, err
	}
	for id, r := range files {
		if r.end-r.dead != live[id] {
			wrong(fmt.Errorf("%w: file %06d.pack has %d bytes of blocks, but the directory says %d", codec.ErrCorrupt, id, live[id], r.end-r.dead))
		}
		delete(live, id)
	}
	for id := range live {
		wrong(fmt.Errorf("%w: the directory has blocks in %06d.pack, but does not know the file", codec.ErrCorrupt, id))
	}
	_, err = loadBoundary(tx)
	return blocks, events, err
}
