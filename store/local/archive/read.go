package archive

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/codec"
)

// Damage is a block that cannot be read, or an event that no block has.
type Damage struct {
	Merchant codec.MerchantKey
	After    codec.Position // the events after this position, up to Last, are concerned
	Last     codec.Position
	Err      error
}

// Has reports whether an event is concerned.
func (d Damage) Has(at codec.Position) bool {
	return at.Compare(d.After) > 0 && at.Compare(d.Last) <= 0
}

// MayHeal reports whether a later read may succeed: the disk has returned an error, and no wrong data.
func (d Damage) MayHeal() bool {
	return !errors.Is(d.Err, codec.ErrCorrupt) && !errors.Is(d.Err, io.EOF) && !errors.Is(d.Err, fs.ErrNotExist)
}

// Damaged is the error of a Read that has met damaged blocks.
type Damaged []Damage

func (d Damaged) Error() string {
	return fmt.Sprintf("archived events cannot be read in %d places; in the first one: %v", len(d), d[0].Err)
}

var errMissing = fmt.Errorf("%w: the archive does not have the event", codec.ErrCorrupt)

// memory is what reading a block needs.
type memory struct{ stored, content []byte }

// load reads and checks a block. Its content is in memory. The caller holds files.removing, or writing.
func (a *Archive) load(m *memory, merchant codec.MerchantKey, at placed) (b block, err error) {
	if m.stored, err = a.files.read(m.stored, at.location); err != nil {
		return block{}, err
	}
	if b, err = a.coder.unpack(m.content, m.stored); err != nil {
		return block{}, err
	}
	m.content = b.content
	if b.merchant != merchant || b.last != at.last || uint64(b.events) != at.events {
		return block{}, fmt.Errorf("%w: another block is where the directory says", codec.ErrCorrupt)
	}
	return b, nil
}

// Read calls use with the events of a merchant at these positions, which are sorted; i is the place of the position. An
// event is valid until use returns. When blocks are damaged, Read goes on with the others, and returns Damaged. When ctx
// ends, it stops before the next block.
func (a *Archive) Read(ctx context.Context, m codec.MerchantKey, positions []codec.Position, use func(i int, e Event)) error {
	a.files.removing.RLock()
	defer a.files.removing.RUnlock()
	var damaged Damaged
	var memory memory
	err := a.view(func(tx *bolt.Tx) error {
		blocks := tx.Bucket(bucketBlocks).Cursor()
		for i := 0; i < len(positions); {
			if err := ctx.Err(); err != nil {
				return err
			}
			at, err := seek(blocks, m, positions[i])
			var b block
			if err == nil {
				b, err = a.load(&memory, m, at)
			}
			n := 1
			for i+n < len(positions) && positions[i+n].Compare(at.last) <= 0 {
				n++
			}
			found := 0
			if err == nil {
				err = b.each(func(e Event) bool {
					for found < n && positions[i+found].Compare(e.Position) < 0 {
						damaged = append(damaged, missing(m, positions[i+found]))
						found++
					}
					if found < n && positions[i+found] == e.Position {
						use(i+found, e)
						found++
					}
					return found < n
				})
			}
			switch {
			case errors.Is(err, errMissing):
				damaged = append(damaged, missing(m, positions[i]))
			case err != nil:
				damaged = append(damaged, Damage{m, endBefore(blocks, m, positions[i]), cmp.Or(at.last, positions[i]), err})
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
func endBefore(blocks *bolt.Cursor, m codec.MerchantKey, at codec.Position) (end codec.Position) {
	blocks.Seek(appendKey(nil, m, at))
	if k, _ := blocks.Prev(); bytes.HasPrefix(k, m[:]) {
		_, end, _ = parseKey(k) // a key that is wrong costs only the figure
	}
	return end
}

// seek returns the block of a merchant that has a position, or that would have it.
func seek(blocks *bolt.Cursor, m codec.MerchantKey, at codec.Position) (placed, error) {
	var buf [len(m) + positionBytes]byte
	k, v := blocks.Seek(appendKey(buf[:0], m, at))
	if k == nil || !bytes.HasPrefix(k, m[:]) {
		return placed{}, errMissing
	}
	return parsePlaced(k, v)
}

// Since calls use with the merchant's events after a position, in the order of positions, some at a time, until use returns
// an error. The events are valid until use returns. No lock is held meanwhile. Since passes blocks that cannot be read to
// damaged, and goes on. It reads at least all events up to Boundary as of the call.
func (a *Archive) Since(ctx context.Context, m codec.MerchantKey, after codec.Position, use func([]Event) error, damaged func(Damage)) error {
	var memory memory
	var events []Event
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		b, last, err := a.nextBlock(&memory, m, after)
		if err == nil && last == (codec.Position{}) {
			return nil
		}
		events = events[:0]
		if err == nil {
			err = b.each(func(e Event) bool {
				if e.Compare(after) > 0 {
					events = append(events, e)
				}
				return true
			})
		}
		if last == (codec.Position{}) {
			return err
		}
		if err != nil {
			damaged(Damage{m, after, last, err})
		} else if err := use(events); err != nil {
			return err
		}
		after = last
	}
}

// nextBlock returns the first block of a merchant that ends after a position, and its last position, which is zero when
// there is none. After an error the last position says which block cannot be read; when it is zero, the directory cannot.
func (a *Archive) nextBlock(memory *memory, m codec.MerchantKey, after codec.Position) (b block, last codec.Position, err error) {
	a.files.removing.RLock()
	defer a.files.removing.RUnlock()
	err = a.view(func(tx *bolt.Tx) error {
		var buf [len(m) + positionBytes]byte
		k, v := tx.Bucket(bucketBlocks).Cursor().Seek(appendKey(buf[:0], m, next(after)))
		if !bytes.HasPrefix(k, m[:]) {
			return nil
		}
		var at placed
		var err error
		if _, last, err = parseKey(k); err != nil {
			return err
		}
		if at, err = parsePlaced(k, v); err == nil {
			b, err = a.load(memory, m, at)
		}
		return err
	})
	return b, last, err
}

// next returns the smallest position that is greater.
func next(p codec.Position) codec.Position {
	if p.Index == math.MaxUint16 {
		return codec.Position{Seq: p.Seq + 1}
	}
	return codec.Position{Seq: p.Seq, Index: p.Index + 1}
}

// Merchants returns all merchants that have archived events, sorted.
func (a *Archive) Merchants() (all []codec.MerchantKey, err error) {
	err = a.view(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketMerchants).ForEach(func(k, _ []byte) error {
			if len(k) != len(codec.MerchantKey{}) {
				return fmt.Errorf("%w: key of a merchant", codec.ErrCorrupt)
			}
			all = append(all, codec.MerchantKey(k))
			return nil
		})
	})
	return all, err
}

// Events returns the number of all archived events.
func (a *Archive) Events() (n int, err error) {
	err = a.view(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketMerchants).ForEach(func(_, v []byte) error {
			r, err := parseMerchant(v)
			n += int(r.events)
			return err
		})
	})
	return n, err
}

// Usage is what the archive has of a merchant.
type Usage struct {
	Events uint64
	Bytes  uint64 // of the bodies
	Stored uint64 // on the disk
}

// Usage returns what the archive has of a merchant.
func (a *Archive) Usage(m codec.MerchantKey) (u Usage, err error) {
	err = a.view(func(tx *bolt.Tx) error {
		r, err := loadMerchant(tx, m)
		u = Usage{r.events, r.bytes, r.stored}
		return err
	})
	return u, err
}
