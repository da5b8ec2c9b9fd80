package journal

import (
	"context"
	"math"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store/local/codec"
)

// Use gets the events of one chunk, in the order of receipt. They are valid until it returns. It returns false when it
// wants no more chunks.
type Use func(seq uint64, events []Event) (more bool)

// Scan calls use with each chunk from the chunk from up to the chunk upTo, both inclusive. When ctx ends, it stops before
// the next chunk and returns ctx's error. At a chunk that is damaged it stops and returns a DamagedChunks. Chunks that Forget
// deletes meanwhile may be left out, or returned as damaged.
func (j *Journal) Scan(ctx context.Context, from, upTo uint64, use Use) error {
	return catchFault(func() error {
		blocks := damagedBlocks.Load()
		txn := j.db.NewTransactionAt(math.MaxUint64, false)
		defer txn.Discard()
		it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{prefixChunk}})
		defer it.Close()
		var d chunkDecoder
		for it.Seek(appendChunkKey(nil, from)); it.Valid(); it.Next() {
			if damagedBlocks.Load() != blocks { // chunks may be missing before this one
				return errDamagedBlock
			}
			seq, err := parseChunkKey(it.Item().Key())
			if err != nil {
				return err
			}
			if seq > upTo {
				return nil
			}
			if more, err := d.pass(ctx, it.Item(), seq, use); err != nil || !more {
				return err
			}
		}
		if damagedBlocks.Load() != blocks {
			return errDamagedBlock
		}
		return nil
	})
}

// Chunks is Scan for the chunks with these numbers, of which there is one at least, and which must increase.
func (j *Journal) Chunks(ctx context.Context, seqs []uint64, use Use) error {
	return catchFault(func() error {
		txn := j.db.NewTransactionAt(math.MaxUint64, false)
		defer txn.Discard()
		var d chunkDecoder
		for _, seq := range seqs {
			item, err := get(txn, appendChunkKey(nil, seq))
			if err != nil {
				return DamagedChunks{{seq, err}}
			}
			if more, err := d.pass(ctx, item, seq, use); err != nil || !more {
				return err
			}
		}
		return nil
	})
}

// chunkDecoder decodes one chunk after the other into the same memory.
type chunkDecoder struct {
	data   []byte
	events []Event
	p      prefetcher
}

// pass decodes a chunk as a whole, and then calls use with its events.
func (d *chunkDecoder) pass(ctx context.Context, item *badger.Item, seq uint64, use Use) (more bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if err := catchDamage(func() error {
		return item.Value(func(packed []byte) (err error) {
			d.p.note(packed)
			if d.data, err = unpackChunk(d.data, packed); err != nil {
				return err
			}
			d.events = d.events[:0]
			decoder := codec.Decoder{B: d.data}
			for i := 0; len(decoder.B) > 0; i++ {
				d.events = append(d.events, decodeEvent(&decoder, codec.Position{Seq: seq, Index: uint16(i)}))
				if err := decoder.Err("chunk"); err != nil {
					return err
				}
			}
			return nil
		})
	}); err != nil {
		return false, DamagedChunks{{seq, err}}
	}
	return use(seq, d.events), nil
}
