package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"

	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
)

// Damage is a block that cannot be read, or an event that no block has.
type Damage struct {
	Merchant codec.MerchantKey
	After    codec.Position // the events after this position, up to Last, are affected
	Last     codec.Position
	Err      error
}

// Has reports whether an event is affected.
func (d Damage) Has(at codec.Position) bool {
	return at.Compare(d.After) > 0 && at.Compare(d.Last) <= 0
}

// Damaged is the error of a Read that has met damaged blocks.
type Damaged []Damage

func (d Damaged) Error() string {
	return fmt.Sprintf("archived events cannot be read in %d places; in the first one: %v", len(d), d[0].Err)
}

var errMissing = fmt.Errorf("%w: the archive does not have the event", codec.ErrCorrupt)

// memory is reused from block to block.
type memory struct{ content []byte }

// unpack checks a stored block. Its content is valid until m is used again.
func (a *Archive) unpack(m *memory, k blockKey, stored []byte) (b block, err error) {
	if b, err = a.coder.unpack(m.content, stored); err != nil {
		return block{}, err
	}
	m.content = b.content
	if b.merchant != k.merchant || b.last != k.last {
		return block{}, fmt.Errorf("%w: a block is stored as another one", codec.ErrCorrupt)
	}
	return b, nil
}

// Read calls use with the events of a merchant at these positions, which are sorted; i is the index of the position. An
// event is valid until use returns. When blocks are damaged, Read goes on with the others, and returns Damaged. When ctx
// ends, it stops before the next block.
func (a *Archive) Read(ctx context.Context, m codec.MerchantKey, positions []codec.Position, use func(i int, e Event)) error {
	var damaged Damaged
	var memory memory
	err := a.view(func(txn *badgerdb.Txn) error {
		it := txn.NewIterator(badgerdb.IteratorOptions{Prefix: appendMerchantKey(nil, prefixBlock, m)})
		var from [blockKeyBytes]byte
		for i := 0; i < len(positions); {
			if err := ctx.Err(); err != nil {
				return err
			}
			it.Seek(blockKey{merchant: m, last: positions[i]}.append(from[:0]))
			found := atBlock(it)
			if err := it.Err(); err != nil {
				return err
			}
			if !found {
				damaged = append(damaged, missing(m, positions[i]))
				i++
				continue
			}
			k, err := parseBlockKey(it.Item().Key())
			if err != nil {
				return err
			}
			b, err := a.unpack(&memory, k, it.Item().Value())
			n := 1
			for i+n < len(positions) && positions[i+n].Compare(k.last) <= 0 {
				n++
			}
			read := 0
			if err == nil {
				err = b.each(func(e Event) bool {
					for read < n && positions[i+read].Compare(e.Position) < 0 {
						damaged = append(damaged, missing(m, positions[i+read]))
						read++
					}
					if read < n && positions[i+read] == e.Position {
						use(i+read, e)
						read++
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
func missing(m codec.MerchantKey, at codec.Position) Damage {
	return Damage{m, before(at), at, errMissing}
}

// before returns the greatest position that is smaller.
func before(p codec.Position) codec.Position {
	if p.Index == 0 {
		return codec.Position{Seq: p.Seq - 1, Index: math.MaxUint16}
	}
	return codec.Position{Seq: p.Seq, Index: p.Index - 1}
}

// endBefore returns the end of the merchant's last block that ends before a position.
func endBefore(txn *badgerdb.Txn, m codec.MerchantKey, at codec.Position) (end codec.Position) {
	it := txn.NewIterator(badgerdb.IteratorOptions{Prefix: appendMerchantKey(nil, prefixBlock, m), Reverse: true})
	if it.Seek(blockKey{m, before(at), math.MaxUint32}.append(nil)); atBlock(it) {
		k, _ := parseBlockKey(it.Item().Key()) // if the key is damaged, only the reported range is wrong
		end = k.last
	}
	return end
}

// sinceBlocks is how many blocks Since reads in one transaction. Badger keeps the files that an open transaction may read.
const sinceBlocks = 32

// Since calls use with the merchant's events after a position, up to the boundary, in the order of positions, one block at a time,
// until use returns an error. The events are valid until use returns. No transaction is open while use runs. Since passes blocks
// that cannot be read to damaged, and continues. It reads at least all events up to the boundary at the time of the call.
func (a *Archive) Since(ctx context.Context, m codec.MerchantKey, after codec.Position, use func([]Event) error, damaged func(Damage)) error {
	var memory memory
	var events []Event
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		boundary := a.Boundary()
		blocks, err := a.nextBlocks(m, after, newestPosition, sinceBlocks, damaged)
		if err != nil || len(blocks) == 0 {
			return err
		}
		for _, stored := range blocks {
			k := stored.blockKey
			b, err := a.unpack(&memory, k, stored.value)
			events = events[:0]
			if err == nil {
				err = b.each(func(e Event) bool {
					if e.Compare(after) > 0 && e.Seq <= boundary {
						events = append(events, e)
					}
					return true
				})
			}
			if err != nil {
				damaged(Damage{m, after, k.last, err})
			} else if len(events) > 0 {
				if err := use(events); err != nil {
					return err
				}
			}
			if k.last.Seq > boundary {
				return nil // what follows is in the journal
			}
			after = k.last
		}
	}
}

type storedBlock struct {
	blockKey
	value []byte
}

// newestPosition is greater than that of any event.
var newestPosition = codec.EndOf(math.MaxUint64)

// nextBlocks returns the first blocks of a merchant that end after a position, up to n. It passes gaps between them, before the
// position upTo, to damaged.
func (a *Archive) nextBlocks(m codec.MerchantKey, after, upTo codec.Position, n int, damaged func(Damage)) (blocks []storedBlock, err error) {
	chain := a.newChain(m, after, upTo)
	var gaps []Damage
	err = a.view(func(txn *badgerdb.Txn) error {
		it := txn.NewIterator(badgerdb.IteratorOptions{Prefix: appendMerchantKey(nil, prefixBlock, m)})
		for it.Seek(blockKey{merchant: m, last: next(after)}.append(nil)); atBlock(it) && len(blocks) < n; it.Next() {
			k, err := parseBlockKey(it.Item().Key())
			if err != nil {
				return err
			}
			value := bytes.Clone(it.Item().Value())
			blocks = append(blocks, storedBlock{k, value})
			if b, _, err := readHeader(value); err == nil { // else unpack fails
				if gap, found := chain.next(b.first, k.last); found {
					gaps = append(gaps, gap)
				}
			}
		}
		if len(blocks) == n {
			return nil
		}
		gap, found, err := chain.atEnd(txn)
		if found {
			gaps = append(gaps, gap)
		}
		return err
	})
	for _, gap := range gaps {
		damaged(gap)
	}
	return blocks, err
}

// next returns the smallest position that is greater.
func next(p codec.Position) codec.Position {
	if p.Index == math.MaxUint16 {
		return codec.Position{Seq: p.Seq + 1}
	}
	return codec.Position{Seq: p.Seq, Index: p.Index + 1}
}

// eachMerchant calls use with the counts of each merchant. A merchant may have only blocks without events.
func (a *Archive) eachMerchant(use func(m codec.MerchantKey, u Usage)) error {
	return a.view(func(txn *badgerdb.Txn) error {
		return eachUsage(txn, func(m codec.MerchantKey, u Usage) error {
			use(m, u)
			return nil
		})
	})
}

func eachUsage(txn *badgerdb.Txn, use func(m codec.MerchantKey, u Usage) error) error {
	it := txn.NewIterator(badgerdb.IteratorOptions{Prefix: []byte{prefixMerchant}})
	for it.Rewind(); it.Valid(); it.Next() {
		k := it.Item().Key()
		if len(k) != merchantKeyBytes {
			return fmt.Errorf("%w: key of a merchant", codec.ErrCorrupt)
		}
		u, err := parseUsage(k, it.Item().Value())
		if err == nil {
			err = use(codec.MerchantKey(k[1:]), u)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Merchants returns all merchants that have archived events, sorted.
func (a *Archive) Merchants() (all []codec.MerchantKey, err error) {
	err = a.eachMerchant(func(m codec.MerchantKey, u Usage) {
		if u.Events > 0 {
			all = append(all, m)
		}
	})
	return all, err
}

// Events returns the number of all archived events.
func (a *Archive) Events() (n int, err error) {
	err = a.eachMerchant(func(_ codec.MerchantKey, u Usage) { n += int(u.Events) })
	return n, err
}

// Usage returns what the archive has of a merchant.
func (a *Archive) Usage(m codec.MerchantKey) (u Usage, err error) {
	err = a.view(func(txn *badgerdb.Txn) (err error) {
		u, err = loadUsage(txn, m)
		return err
	})
	return u, err
}
