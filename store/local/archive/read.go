package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
)

// Damage is a block that cannot be read, or an event that no block has.
type Damage struct {
	Merchant store.MerchantKey
	After    store.Position // the events after this position, up to Last, are affected
	Last     store.Position
	Err      error
}

// Has reports whether an event is affected.
func (d Damage) Has(at store.Position) bool {
	return at.Compare(d.After) > 0 && at.Compare(d.Last) <= 0
}

// Damaged is the error of a Read that has met damaged blocks.
type Damaged []Damage

func (d Damaged) Error() string {
	return fmt.Sprintf("archived events cannot be read in %d places; in the first one: %v", len(d), d[0].Err)
}

var errMissing = fmt.Errorf("%w: the archive does not have the event", codec.ErrCorrupt)

// Read calls use with the events of a merchant at these positions, which are sorted; i is the index of the position. An
// event is valid until use returns. When blocks are damaged, Read goes on with the others, and returns Damaged. When ctx
// ends, it stops before the next block.
func (a *Archive) Read(ctx context.Context, m store.MerchantKey, positions []store.Position, use func(i int, e Event)) error {
	var damaged Damaged
	var memory memory
	err := a.db.View(func(txn *badgerdb.Txn) error {
		it := txn.NewIterator(badgerdb.IteratorOptions{Prefix: appendMerchantKey(nil, prefixBlock, m)})
		var from [blockKeyBytes]byte
		for i := 0; i < len(positions); {
			if err := ctx.Err(); err != nil {
				return err
			}
			it.Seek(blockKey{merchant: m, last: positions[i]}.append(from[:0]))
			if err := it.Err(); err != nil {
				return err
			}
			if !it.Valid() {
				damaged = append(damaged, missing(m, positions[i]))
				i++
				continue
			}
			k, err := parseBlockKey(it.Entry().Key)
			if err != nil {
				return err
			}
			b, err := a.coder.unpack(&memory, k, it.Entry().Value)
			n := 1
			for i+n < len(positions) && positions[i+n].Compare(k.last) <= 0 {
				n++
			}
			read := 0
			if err == nil {
				err = b.each(func(e Event) bool {
					for ; read < n && positions[i+read].Compare(e.Position) <= 0; read++ {
						if positions[i+read] == e.Position {
							use(i+read, e)
						} else {
							damaged = append(damaged, missing(m, positions[i+read]))
						}
					}
					return read < n
				})
			}
			if err != nil {
				damaged = append(damaged, Damage{m, endBefore(txn, m, positions[i]), k.last, err})
			} else {
				for ; read < n; read++ { // they were removed
					damaged = append(damaged, missing(m, positions[i+read]))
				}
			}
			i += n
		}
		return nil
	})
	if err == nil && damaged != nil {
		err = damaged
	}
	return err
}

// IsMissing reports whether the damage is an event that no block has.
func IsMissing(d Damage) bool { return errors.Is(d.Err, errMissing) }

// missing is the damage of one event that no block has.
func missing(m store.MerchantKey, at store.Position) Damage {
	return Damage{m, before(at), at, errMissing}
}

// before returns the greatest position that is smaller.
func before(p store.Position) store.Position {
	if p.Index == 0 {
		return store.Position{Seq: p.Seq - 1, Index: math.MaxUint16}
	}
	return store.Position{Seq: p.Seq, Index: p.Index - 1}
}

// endBefore returns the end of the merchant's last block that ends before a position.
func endBefore(txn *badgerdb.Txn, m store.MerchantKey, at store.Position) (end store.Position) {
	it := txn.NewIterator(badgerdb.IteratorOptions{Prefix: appendMerchantKey(nil, prefixBlock, m), Reverse: true})
	if it.Seek(blockKey{m, before(at), math.MaxUint32}.append(nil)); it.Valid() {
		k, _ := parseBlockKey(it.Entry().Key) // if the key is damaged, only the reported range is wrong
		end = k.last
	}
	return end
}

// newestPosition is greater than that of any event.
var newestPosition = store.EndOf(math.MaxUint64)

// Since calls use with batches of the merchant's events, in the order of positions: those after a position, up to the
// boundary at the time of the call. It stops when use returns an error. The events are valid until use returns. Since passes
// blocks that cannot be read to damaged, and continues.
func (a *Archive) Since(ctx context.Context, m store.MerchantKey, after store.Position, use func([]Event) error, damaged func(Damage)) error {
	const blocks = 16 // few, so that use is called often and can pause
	all := []selector{{wants: func(Event) bool { return true }}}
	return a.each(ctx, m, after, store.EndOf(a.Boundary()), blocks, all, use, damaged)
}

// Select reads all of the merchant's events after a position, up to and including another one. It calls use with those that
// a filter wants, in the order of positions, until use returns an error. Several filters run at the same time, each in a
// goroutine of its own. An event is valid until the filter or use returns. Select passes blocks that cannot be read to
// damaged, and continues. It calls pace after each few blocks.
func (a *Archive) Select(ctx context.Context, m store.MerchantKey, after, upTo store.Position, newFilter func() func(Event) (wanted bool),
	use func(Event) error, damaged func(Damage), pace func()) error {
	const blocks = 256
	selectors := make([]selector, runtime.GOMAXPROCS(0))
	for i := range selectors {
		selectors[i].wants = newFilter()
	}
	return a.each(ctx, m, after, upTo, blocks, selectors, func(events []Event) error {
		for _, e := range events {
			if err := use(e); err != nil {
				return err
			}
		}
		pace()
		return nil
	}, damaged)
}

// each reads n blocks at a time, and divides them among the selectors. No transaction is open while use runs, because Badger
// cannot delete files that an open transaction may read.
func (a *Archive) each(ctx context.Context, m store.MerchantKey, after, upTo store.Position, n int, selectors []selector,
	use func([]Event) error, damaged func(Damage)) error {
	for after.Compare(upTo) < 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		blocks, err := a.nextBlocks(m, after, upTo, n, damaged)
		if err != nil || len(blocks) == 0 {
			return err
		}
		var run sync.WaitGroup
		for i := range selectors {
			s, from, to := &selectors[i], len(blocks)*i/len(selectors), len(blocks)*(i+1)/len(selectors)
			start := after
			if from > 0 {
				start = blocks[from-1].last
			}
			run.Go(func() { s.run(a, m, blocks[from:to], start, upTo) })
		}
		run.Wait()
		for _, s := range selectors {
			if err := use(s.found); err != nil {
				return err
			}
			for _, d := range s.damaged {
				damaged(d)
			}
		}
		after = blocks[len(blocks)-1].last
	}
	return nil
}

// selector finds the wanted events of its share of the blocks.
type selector struct {
	wants   func(Event) bool
	memory  memory
	found   []Event
	damaged []Damage
}

func (s *selector) run(a *Archive, m store.MerchantKey, blocks []storedBlock, after, upTo store.Position) {
	s.found, s.damaged = s.found[:0], nil
	for _, stored := range blocks {
		b, err := a.coder.unpack(&s.memory, stored.blockKey, stored.value)
		kept := len(s.found)
		if err == nil {
			err = b.each(func(e Event) bool {
				if e.Compare(after) > 0 && e.Compare(upTo) <= 0 && s.wants(e) {
					s.found = append(s.found, e)
				}
				return e.Compare(upTo) < 0
			})
		}
		if len(s.found) > kept {
			s.memory.content = nil // the events refer to it
		}
		if err != nil {
			s.found = s.found[:kept]
			s.damaged = append(s.damaged, Damage{m, after, stored.last, err})
		}
		after = stored.last
	}
}

type storedBlock struct {
	blockKey
	value []byte
}

// nextBlocks returns the first blocks of a merchant that end after a position, up to n. It passes gaps between them, before
// the position upTo, to damaged.
func (a *Archive) nextBlocks(m store.MerchantKey, after, upTo store.Position, n int, damaged func(Damage)) (blocks []storedBlock, err error) {
	var gaps []Damage
	err = a.db.View(func(txn *badgerdb.Txn) error {
		return a.eachBlock(txn, txn.NewIterator(badgerdb.IteratorOptions{}), m, after, upTo, &gaps, func(k blockKey, stored []byte) bool {
			blocks = append(blocks, storedBlock{k, bytes.Clone(stored)})
			return len(blocks) < n
		})
	})
	for _, gap := range gaps {
		damaged(gap)
	}
	return blocks, err
}

var errGap = fmt.Errorf("%w: a block is missing", codec.ErrCorrupt)

// eachBlock calls use with the blocks of a merchant that end after a position, until use returns false. It appends the gaps
// between them that begin before the position upTo.
//
// The blocks of a merchant follow each other without a gap: each begins where the one before ends, and the last one ends
// where the merchant's counts say. A removal keeps that. So a reader sees that it has read all of them, whatever Badger
// returns.
func (a *Archive) eachBlock(txn *badgerdb.Txn, it *badgerdb.Iterator, m store.MerchantKey, after, upTo store.Position, gaps *[]Damage,
	use func(k blockKey, stored []byte) (more bool)) error {
	if last := store.EndOf(a.Boundary()); upTo.Compare(last) > 0 {
		upTo = last
	}
	pass := func(first, last store.Position) {
		if first.Seq > a.gaps.Load() && next(after).Compare(first) < 0 && after.Compare(upTo) < 0 {
			*gaps = append(*gaps, Damage{m, after, before(first), errGap})
		}
		after = last
	}
	it.Within(appendMerchantKey(nil, prefixBlock, m))
	for it.Seek(blockKey{merchant: m, last: next(after)}.append(nil)); it.Valid(); it.Next() {
		k, err := parseBlockKey(it.Entry().Key)
		if err != nil {
			return err
		}
		if b, _, err := readHeader(it.Entry().Value); err == nil { // on an error, unpack fails later
			pass(b.first, k.last)
		}
		if !use(k, it.Entry().Value) {
			return nil
		}
	}
	if err := it.Err(); err != nil {
		return err
	}
	u, err := loadUsage(txn, m)
	if err == nil && u.Last.Compare(after) > 0 {
		pass(next(u.Last), u.Last)
	}
	return err
}

// next returns the smallest position that is greater.
func next(p store.Position) store.Position {
	if p.Index == math.MaxUint16 {
		return store.Position{Seq: p.Seq + 1}
	}
	return store.Position{Seq: p.Seq, Index: p.Index + 1}
}

// Each calls use with the counts of each merchant. A merchant may have only blocks without events.
func (a *Archive) Each(use func(m store.MerchantKey, u Usage) error) error {
	return a.db.View(func(txn *badgerdb.Txn) error { return eachUsage(txn, 0, use) })
}

// eachUsage calls use with the counts that were written after the commit since.
func eachUsage(txn *badgerdb.Txn, since uint64, use func(m store.MerchantKey, u Usage) error) error {
	return txn.Each(context.Background(), badgerdb.IteratorOptions{Prefix: []byte{prefixMerchant}, Since: since}, func(e *codec.Entry) error {
		if len(e.Key) != merchantKeyBytes {
			return fmt.Errorf("%w: key of a merchant", codec.ErrCorrupt)
		}
		u, err := parseUsage(e.Key, e.Value)
		if err != nil {
			return err
		}
		return use(store.MerchantKey(e.Key[1:]), u)
	})
}

// Merchants returns all merchants that have archived events, sorted.
func (a *Archive) Merchants() (all []store.MerchantKey, err error) {
	err = a.Each(func(m store.MerchantKey, u Usage) error {
		if u.Events > 0 {
			all = append(all, m)
		}
		return nil
	})
	return all, err
}

// Usage returns what the archive has of a merchant.
func (a *Archive) Usage(m store.MerchantKey) (u Usage, err error) {
	err = a.db.View(func(txn *badgerdb.Txn) (err error) {
		u, err = loadUsage(txn, m)
		return err
	})
	return u, err
}
