package journal

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"

	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
	"mtagd/store/local/log"
)

// Check is what Verify reports to. One goroutine makes all calls, and no transaction is open meanwhile.
type Check struct {
	Wrong   func(where string, err error)    // damage, other than of a chunk
	Damaged func(d DamagedChunk)             // a chunk that cannot be read
	Events  func(seq uint64, events []Event) // a chunk's events; valid until Events returns
	Read    func(done, total uint64)         // after each short read
}

// Counts is how many sound entries Verify has read.
type Counts struct{ Chunks, Links, Marks uint64 }

// add counts an entry of the database. It returns false when this version and 1.0.0 do not write such a one.
func (c *Counts) add(key, value []byte) (ok bool) {
	switch isOther := len(key) == 1 && (key[0] == prefixFormat || key[0] == prefixFlushed); {
	case isFormerKey(key):
		return true
	case !isKey(key) && !isOther:
		return false
	}
	switch key[0] {
	case prefixFormat:
		return string(value) == Format
	case prefixForgotten:
		return len(value) == 8
	case prefixFlushed:
		return len(value) == 8 || len(value) == 12
	case prefixLinked:
		return len(value) == 1
	case prefixDedupe:
		if ok = len(value) == 8; ok {
			c.Marks++
		}
	default:
		if _, _, err := parseAnyLink(key, value); err == nil {
			c.Links, ok = c.Links+1, true
		}
	}
	return ok
}

// OpenReadOnly opens an existing journal, which no other process has open, for Verify and for reading. It changes nothing.
func OpenReadOnly(dir string, opt Options) (j *Journal, err error) {
	if _, err := os.Stat(logDir(dir)); err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	j = &Journal{dir: dir, readOnly: true, opt: Options{Log: slog.New(slog.DiscardHandler), Now: opt.Now}}
	if j.log, err = log.OpenReadOnly(logDir(dir)); err != nil {
		return nil, fmt.Errorf("open %s: %w", dir, err)
	}
	db, err := badgerdb.OpenReadOnly(keysDir(dir), opt.Log)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", dir, err), j.log.Close())
	}
	j.keys = &keyStore{db: db}
	if err = j.keys.checkFormat(); err == nil {
		err = j.replay()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", dir, err), j.Close())
	}
	return j, nil
}

// Verify reads the log and the database again, checks their checksums, and decodes every entry. Entries are written
// meanwhile; it may see these or not. It returns an error only when ctx ends.
func (j *Journal) Verify(ctx context.Context, c Check) (counts Counts, err error) {
	if err := j.keys.db.Check(ctx, func() {}, func(d *badgerdb.Damage) { c.Wrong("events", d) }); err != nil {
		return counts, err
	}
	chunks := j.chunks.between(0, math.MaxUint64)
	total := uint64(len(chunks))
	for _, lost := range j.lost {
		c.Damaged(lost)
	}
	r := reader{chunks: &j.chunks}
	for n, s := range chunks {
		if err := ctx.Err(); err != nil {
			return counts, err
		}
		s.record = nil // the file is checked, and not what is in memory
		events, err := r.read(s)
		switch {
		case err == nil:
			counts.Chunks++
			c.Events(s.seq, events)
		case j.HasChunk(s.seq): // it was not forgotten meanwhile
			c.Damaged(DamagedChunk{s.seq, err})
		}
		c.Read(uint64(n), total)
	}
	if err := j.keys.each(ctx, nil, 0, func(key, value []byte) error {
		to := &counts
		if _, _, isNewer := j.keys.unflushed(key, false); isNewer { // that is counted below
			to = new(Counts)
		}
		if !to.add(key, value) {
			c.Wrong(fmt.Sprintf("events: entry %x", key), fmt.Errorf("%w: unknown key, or a value that does not fit it", codec.ErrCorrupt))
		}
		return nil
	}); err != nil && ctx.Err() == nil {
		c.Wrong("events", err)
	}
	j.keys.eachUnflushed(func(key, value []byte) { counts.add(key, value) }) // but no deletion, which has no value
	return counts, ctx.Err()
}
