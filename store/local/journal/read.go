package journal

import (
	"context"
	"errors"
	"fmt"
	"math"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// DamagedChunk is a chunk that cannot be read, and why.
type DamagedChunk struct {
	Seq uint64
	Err error
}

var errNoChunk = errors.New("the chunk is not in the log")

// IsMissing reports whether the journal does not have the chunk at all.
func (d DamagedChunk) IsMissing() bool { return errors.Is(d.Err, errNoChunk) }

// Reason says why the chunk cannot be read, for operators.
func (d DamagedChunk) Reason() string {
	if d.IsMissing() {
		return "is missing"
	}
	return fmt.Sprintf("cannot be read: %v", d.Err)
}

// DamagedChunks is the error of a Read that has met damaged chunks.
type DamagedChunks []DamagedChunk

func (d DamagedChunks) Error() string {
	return fmt.Sprintf("%d chunks of events are damaged, the first is %d, which %s", len(d), d[0].Seq, d[0].Reason())
}

// Read calls use with the events at these positions; i is the index of the position. The positions are sorted, so each chunk
// is unpacked once. An event is valid until use returns. When ctx ends, Read stops before the next chunk and returns ctx's error.
// When chunks are damaged or missing, Read goes on with the others, and returns a DamagedChunks.
func (j *Journal) Read(ctx context.Context, positions []store.Position, use func(i int, e Event)) error {
	r := reader{chunks: &j.chunks}
	var damaged DamagedChunks
	for i, next := 0, 0; i < len(positions); i = next {
		if err := ctx.Err(); err != nil {
			return err
		}
		for seq := positions[i].Seq; next < len(positions) && positions[next].Seq == seq; {
			next++
		}
		if err := r.pick(positions[:next], i, use); err != nil {
			damaged = append(damaged, DamagedChunk{positions[i].Seq, err})
		}
	}
	if damaged != nil {
		return damaged
	}
	return nil
}

// pick is Read for the positions from i on, which are of one chunk.
func (r *reader) pick(positions []store.Position, i int, use func(i int, e Event)) error {
	s, found := r.chunks.find(positions[i].Seq)
	if !found {
		return errNoChunk
	}
	chunk, err := r.unpack(s)
	if err != nil {
		return err
	}
	return pickEvents(chunk, positions, i, use)
}

// pickEvents is pick of a chunk that was read.
func pickEvents(chunk []byte, positions []store.Position, i int, use func(i int, e Event)) error {
	d := codec.Decoder{B: chunk}
	for at := (store.Position{Seq: positions[i].Seq}); i < len(positions); at.Index++ {
		event := decodeEvent(&d, at)
		if err := d.Err("chunk"); err != nil {
			return err
		}
		for ; i < len(positions) && positions[i] == at; i++ {
			use(i, event)
		}
	}
	return nil
}

// Use gets the events of a chunk, in the order of receipt, valid until it returns. It returns false when it wants no more.
type Use func(seq uint64, events []Event) (more bool)

// Scan calls use with the chunks from from to upTo, both inclusive, that may have events of the merchants. When ctx ends,
// Scan stops before the next chunk and returns ctx's error. At a damaged chunk it stops and returns a DamagedChunks. Chunks
// that Forget deletes meanwhile may be left out, or be reported as damaged.
func (j *Journal) Scan(ctx context.Context, from, upTo uint64, of MerchantSet, use Use) error {
	r := reader{chunks: &j.chunks}
	for _, s := range j.chunks.between(max(from, 1)-1, upTo) {
		if !s.mayHave(of) {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		events, err := r.read(s)
		if err != nil {
			return DamagedChunks{{s.seq, err}}
		}
		if !use(s.seq, events) {
			return nil
		}
	}
	return nil
}

// Since calls use for each chunk after the chunk seq, up to and including upTo, in the order of receipt; last is its number.
// The events are valid until use returns. Chunks that cannot be read are passed to damaged.
func (j *Journal) Since(seq, upTo uint64, use func(events []Event, last uint64) error, damaged func(DamagedChunk)) error {
	r := reader{chunks: &j.chunks}
	lost := j.lost
	passLost := func(before uint64) {
		for ; len(lost) > 0 && lost[0].Seq < before; lost = lost[1:] {
			if lost[0].Seq > seq && lost[0].Seq <= upTo {
				damaged(lost[0])
			}
		}
	}
	for _, s := range j.chunks.between(seq, upTo) {
		passLost(s.seq)
		events, err := r.read(s)
		if err != nil {
			damaged(DamagedChunk{s.seq, err})
			continue
		}
		if err := use(events, s.seq); err != nil {
			return err
		}
	}
	passLost(math.MaxUint64)
	return nil
}

// HasChunk reports whether a chunk is in the journal.
func (j *Journal) HasChunk(seq uint64) bool {
	_, found := j.chunks.find(seq)
	return found
}

// CheckChunk reads a chunk, and returns why it cannot be read, or nil.
func (j *Journal) CheckChunk(seq uint64) error {
	s, found := j.chunks.find(seq)
	if !found {
		return errNoChunk
	}
	r := reader{chunks: &j.chunks}
	_, err := r.read(s)
	return err
}
