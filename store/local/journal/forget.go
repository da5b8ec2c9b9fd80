package journal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store/group"
	"mtagd/store/local/codec"
)

// Stored is an event as a chunk has it. The body is valid until the function that got it returns.
type Stored struct {
	Merchant codec.MerchantKey
	codec.Position
	Body []byte // see DecodeBody
}

// StoredChunks calls use with the events of each chunk after the chunk seq, up to and including the chunk last, in the order of
// receipt, until use returns false. It passes a chunk that cannot be read to damaged, which also says whether to go on.
func (j *Journal) StoredChunks(seq, last uint64, use func(seq uint64, events []Stored) (more bool), damaged func(DamagedChunk) (more bool)) error {
	return catchFault(func() error { return j.chunks(seq, last, use, damaged) })
}

func (j *Journal) chunks(seq, last uint64, use func(seq uint64, events []Stored) (more bool), damaged func(DamagedChunk) (more bool)) error {
	var data []byte
	var events []Stored
	return j.eachChunk(seq, last, func(at uint64, item *badger.Item) (more bool) {
		err := catchDamage(func() error {
			return item.Value(func(packed []byte) (err error) {
				if data, err = unpackChunk(data, packed); err != nil {
					return err
				}
				events, err = appendStored(events[:0], data, at)
				return err
			})
		})
		if err != nil {
			return damaged(DamagedChunk{at, err})
		}
		return use(at, events)
	})
}

// appendStored splits a chunk into its events.
func appendStored(events []Stored, chunk []byte, seq uint64) ([]Stored, error) {
	d := codec.Decoder{B: chunk}
	for i := 0; len(d.B) > 0; i++ {
		before := d.B
		e := decodeEvent(&d, codec.Position{Seq: seq, Index: uint16(i)})
		if err := d.Err("chunk"); err != nil {
			return nil, err
		}
		events = append(events, Stored{e.Merchant, e.Position, before[len(e.Merchant) : len(before)-len(d.B)]})
	}
	return events, nil
}

// eachChunk calls use with the chunks after seq, up to and including last, until use returns false. It returns errDamagedBlock if it
// has met a damaged table, in which more chunks may be.
func (j *Journal) eachChunk(seq, last uint64, use func(at uint64, item *badger.Item) (more bool)) error {
	blocks := damagedBlocks.Load()
	txn := j.db.NewTransactionAt(math.MaxUint64, false)
	defer txn.Discard()
	it := txn.NewIterator(badger.IteratorOptions{Prefix: []byte{prefixChunk}})
	defer it.Close()
	for it.Seek(appendChunkKey(nil, seq+1)); it.Valid(); it.Next() {
		at, err := parseChunkKey(it.Item().Key())
		if err != nil {
			return err
		}
		if at > last {
			break
		}
		if damagedBlocks.Load() != blocks { // chunks may be hidden
			return errDamagedBlock
		}
		if !use(at, it.Item()) {
			break
		}
	}
	if damagedBlocks.Load() != blocks {
		return errDamagedBlock
	}
	return nil
}

// Forget deletes the chunks after seq, up to and including last, whose events are on disk elsewhere. It keeps those for which keep
// returns true. Call it after Start, from one goroutine.
func (j *Journal) Forget(seq, last uint64, keep func(seq uint64) bool) error {
	return catchFault(func() error {
		for {
			var seqs []uint64
			most := int(j.db.MaxBatchCount()/2) - 2
			if err := j.eachChunk(seq, last, func(at uint64, _ *badger.Item) bool {
				if !keep(at) {
					seqs = append(seqs, at)
				}
				seq = at
				return len(seqs) < most
			}); err != nil || len(seqs) == 0 {
				return err
			}
			if err := j.committer.forget(seqs, last); err != nil {
				return err
			}
		}
	})
}

// forget deletes chunks, and stores the number last: chunks up to it may be missing from now on.
func (c *committer) forget(seqs []uint64, last uint64) error {
	return c.edit(func(t *transaction) error {
		err := t.set(badger.NewEntry([]byte{prefixForgotten}, binary.BigEndian.AppendUint64(nil, last)))
		for _, seq := range seqs {
			err = errors.Join(err, t.delete(appendChunkKey(nil, seq)))
		}
		return err
	})
}

// edit commits a transaction between two groups of marks.
func (c *committer) edit(change func(t *transaction) error) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.mayWrite(); err != nil {
		return err
	}
	t := c.begin()
	defer t.txn.Discard()
	err := change(t)
	if err == nil {
		err = c.commit(t)
	} else {
		c.arenas.put(t.arena)
	}
	if errors.Is(err, group.ErrCommit) {
		c.queue.Fail(err)
	}
	return err
}

// mayWrite returns an error when a commit has failed before, or the disk has no room for one. The caller holds writing.
func (c *committer) mayWrite() error {
	if err := c.queue.Failure(); err != nil {
		return err
	}
	return c.disk.roomForCommit()
}

// Forgotten returns the number of a chunk: chunks up to it may have been deleted by Forget.
func (j *Journal) Forgotten() (seq uint64, err error) {
	err = catchFault(func() (err error) {
		txn := j.db.NewTransactionAt(math.MaxUint64, false)
		defer txn.Discard()
		seq, err = forgotten(txn)
		return err
	})
	return seq, err
}

func forgotten(txn *badger.Txn) (seq uint64, err error) {
	_, err = lookup(txn, []byte{prefixForgotten}, func(b []byte) error {
		if len(b) != 8 {
			return fmt.Errorf("%w: number of the last chunk that was deleted", codec.ErrCorrupt)
		}
		seq = binary.BigEndian.Uint64(b)
		return nil
	})
	return seq, err
}
