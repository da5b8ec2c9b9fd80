package journal

import (
	"context"
	"errors"
	"math"
	"slices"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store/local/codec"
)

// Wanted is an event to read, and its number in the caller's results.
type Wanted struct {
	codec.Position
	N int
}

// prefetchChunks is how many chunks must still be wanted for prefetching to pay.
const prefetchChunks = 4

// Read calls use with each wanted event and its N. It sorts wanted, and reads the events in the order of positions. So it
// unpacks each chunk once, and reads chunks that are neighbours in the value log one after the other. An event is valid
// until use returns. When ctx ends, Read stops before the next chunk and returns ctx's error. When chunks are damaged, Read
// goes on with the others, and returns a DamagedChunks.
func (j *Journal) Read(ctx context.Context, wanted []Wanted, use func(n int, e Event)) error {
	return catchFault(func() error { return j.read(ctx, wanted, use) })
}

func (j *Journal) read(ctx context.Context, wanted []Wanted, use func(n int, e Event)) error {
	chunks := byChunk(wanted)
	txn := j.db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	r := reader{txn: txn}
	var damaged DamagedChunks
	for k, here := range chunks {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.read(here, k+prefetchChunks < len(chunks), use); err != nil {
			damaged = append(damaged, DamagedChunk{here[0].Seq, err})
		}
	}
	if damaged != nil {
		return damaged
	}
	return nil
}

// reader reads chunks in one transaction.
type reader struct {
	txn  *badger.Txn
	data []byte // memory for a chunk
	p    prefetcher
}

// read calls use with the wanted events of one chunk.
func (r *reader) read(wanted []Wanted, prefetch bool, use func(n int, e Event)) error {
	return catchDamage(func() error {
		item, err := get(r.txn, appendChunkKey(nil, wanted[0].Seq))
		if err != nil {
			return err
		}
		if err := item.Value(func(packed []byte) (err error) {
			if prefetch {
				r.p.note(packed)
			}
			r.data, err = unpackChunk(r.data, packed)
			return err
		}); err != nil {
			return err
		}
		return pickEvents(r.data, wanted, use)
	})
}

// byChunk sorts wanted by position, and splits it by chunk.
func byChunk(wanted []Wanted) (chunks [][]Wanted) {
	slices.SortFunc(wanted, func(a, b Wanted) int { return a.Compare(b.Position) })
	start := 0
	for i := range wanted {
		if i+1 == len(wanted) || wanted[i+1].Seq != wanted[i].Seq {
			chunks = append(chunks, wanted[start:i+1])
			start = i + 1
		}
	}
	return chunks
}

// pickEvents calls use with the wanted events of one chunk. wanted is sorted, without duplicates.
func pickEvents(chunk []byte, wanted []Wanted, use func(n int, e Event)) error {
	d := codec.Decoder{B: chunk}
	for i := 0; len(wanted) > 0; i++ {
		event := decodeEvent(&d, codec.Position{Seq: wanted[0].Seq, Index: uint16(i)})
		if err := d.Err("chunk"); err != nil {
			return err
		}
		if i == int(wanted[0].Index) {
			use(wanted[0].N, event)
			wanted = wanted[1:]
		}
	}
	return nil
}

// Since calls use once for each chunk after the chunk seq, with its events, in the order of receipt; last is the number
// of the chunk. The events are valid until use returns. Since passes chunks that cannot be read to damaged, and goes on.
func (j *Journal) Since(seq uint64, use func(events []codec.Event, last uint64) error, damaged func(DamagedChunk)) error {
	return catchFault(func() error { return j.since(seq, use, damaged) })
}

func (j *Journal) since(seq uint64, use func(events []codec.Event, last uint64) error, damaged func(DamagedChunk)) error {
	blocks := damagedBlocks.Load()
	txn := j.db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{prefixChunk}})
	defer it.Close()
	var data []byte
	var events []codec.Event
	decode := func(at uint64) error {
		return catchDamage(func() error {
			return it.Item().Value(func(packed []byte) (err error) {
				if data, err = unpackChunk(data, packed); err != nil {
					return err
				}
				events, err = appendEvents(events[:0], data, at)
				return err
			})
		})
	}
	for it.Seek(appendChunkKey(nil, seq+1)); it.Valid(); it.Next() {
		at, err := parseChunkKey(it.Item().Key())
		if err != nil {
			return err
		}
		if err := decode(at); err != nil {
			damaged(DamagedChunk{at, err})
			continue
		}
		if err := use(events, at); err != nil {
			return err
		}
	}
	if damagedBlocks.Load() != blocks {
		return errDamagedBlock
	}
	return nil
}

// appendEvents decodes all events of a chunk.
func appendEvents(events []codec.Event, chunk []byte, seq uint64) ([]codec.Event, error) {
	d := codec.Decoder{B: chunk}
	for i := 0; len(d.B) > 0; i++ {
		e := decodeEvent(&d, codec.Position{Seq: seq, Index: uint16(i)})
		if err := d.Err("chunk"); err != nil {
			return nil, err
		}
		events = append(events, e.Event)
	}
	return events, nil
}

// HasChunk reports whether a chunk is in the journal, damaged or not.
func (j *Journal) HasChunk(seq uint64) (has bool, err error) {
	err = catchFault(func() error {
		txn := j.db.NewTransactionAt(math.MaxUint64, false)
		defer txn.Discard()
		_, err := get(txn, appendChunkKey(nil, seq))
		if errors.Is(err, badger.ErrKeyNotFound) {
			return nil
		}
		has = err == nil
		return err
	})
	return has, err
}

// CheckChunk reads a chunk, and returns why it cannot be read, or nil.
func (j *Journal) CheckChunk(seq uint64) error {
	return catchFault(func() error {
		txn := j.db.NewTransactionAt(math.MaxUint64, false)
		defer txn.Discard()
		item, err := get(txn, appendChunkKey(nil, seq))
		if err == nil {
			_, err = readChunk(item, seq)
		}
		return err
	})
}

// readChunk decodes all events of a chunk into memory of their own.
func readChunk(item *badger.Item, seq uint64) (events []codec.Event, err error) {
	err = catchDamage(func() error {
		return item.Value(func(packed []byte) error {
			data, err := unpackChunk(nil, packed)
			if err != nil {
				return err
			}
			events, err = appendEvents(nil, data, seq)
			return err
		})
	})
	return events, err
}
