package journal

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store/local/codec"
)

// Snapshot is the journal as of one commit. Badger keeps what the snapshot needs until Close. Only one may be open.
type Snapshot struct {
	Version uint64 // of the last commit that is in it

	j *Journal
}

// Snapshot returns the journal as of the last commit.
func (j *Journal) Snapshot() Snapshot {
	j.collecting.Lock()
	defer j.collecting.Unlock()
	j.snapshots++
	version := j.Version()
	// A compaction keeps the newest entry up to this version of each key, and all entries after it. One that is running
	// drops no entry of the snapshot: it reads tables of commits that had ended, because only the next commit after them
	// can have closed their memtable.
	j.db.SetDiscardTs(version)
	return Snapshot{Version: version, j: j}
}

// Close lets Badger drop what only the snapshot needed. It does nothing for the zero value.
func (s Snapshot) Close() {
	if s.j != nil {
		s.j.collecting.Lock()
		defer s.j.collecting.Unlock()
		s.j.snapshots--
		s.j.db.SetDiscardTs(math.MaxUint64)
	}
}

// Version returns the number of the last commit. All commits up to it are complete.
func (j *Journal) Version() uint64 {
	if j.committer == nil {
		return j.db.MaxVersion()
	}
	return j.committer.version.Load()
}

// Entries calls use with the newest entry of each key, deletions included, of those that were written after the commit
// since. Expired entries are left out. The entry is valid until use returns. Chunks come first, in the order of receipt.
//
// A chunk that is damaged is left out too: damaged is called with its number. When a table is damaged, nobody knows what it
// had: Entries fails.
func (s Snapshot) Entries(ctx context.Context, since uint64, use func(codec.Entry) error, damaged func(seq uint64, err error)) error {
	return catchFault(func() error { return s.entries(ctx, since, use, damaged) })
}

func (s Snapshot) entries(ctx context.Context, since uint64, use func(codec.Entry) error, damaged func(seq uint64, err error)) error {
	blocks := damagedBlocks.Load()
	txn := s.j.db.NewTransactionAt(s.Version, false)
	defer txn.Discard()
	it := txn.NewIterator(badger.IteratorOptions{AllVersions: true, SinceTs: since}) // all, because others hide deletions
	defer it.Close()
	var last, value []byte
	var p prefetcher
	now := uint64(time.Now().Unix())
	for it.Rewind(); it.Valid(); it.Next() {
		item := it.Item()
		if string(item.Key()) == string(last) {
			continue // an older entry of the same key
		}
		last = item.KeyCopy(last)
		e := codec.Entry{Key: last, Version: item.Version(), ExpiresAt: item.ExpiresAt()}
		expired := e.ExpiresAt != 0 && e.ExpiresAt <= now
		e.Deleted = item.IsDeletedOrExpired() && !expired
		if expired {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if !e.Deleted {
			err := item.Value(func(b []byte) error {
				p.note(b)
				value = append(value[:0], b...)
				_, err := CheckEntry(codec.Entry{Key: last, Value: value})
				return err
			})
			if seq, keyErr := parseChunkKey(last); err != nil && keyErr == nil {
				damaged(seq, err)
				continue
			}
			if err != nil {
				return fmt.Errorf("entry %x: %w", last, err)
			}
			e.Value = value
		}
		if err := use(e); err != nil {
			return err
		}
	}
	if damagedBlocks.Load() != blocks {
		return errDamagedBlock
	}
	return nil
}

// CheckEntry returns an error for a chunk that does not decode. It returns the number of the chunk's events, and 0 for all
// other entries.
func CheckEntry(e codec.Entry) (events int, err error) {
	if e.Deleted || len(e.Key) == 0 || e.Key[0] != prefixChunk {
		return 0, nil
	}
	seq, err := parseChunkKey(e.Key)
	if err != nil {
		return 0, err
	}
	chunk, err := unpackChunk(nil, e.Value)
	if err != nil {
		return 0, err
	}
	d := codec.Decoder{B: chunk}
	for ; len(d.B) > 0; events++ {
		decodeEvent(&d, codec.Position{Seq: seq})
		if err := d.Err("chunk"); err != nil {
			return 0, err
		}
	}
	return events, nil
}

// IsChunk reports whether an entry has events, and not a link or a remembered event_id.
func IsChunk(e codec.Entry) bool { return len(e.Key) > 0 && e.Key[0] == prefixChunk }

// ChunkOf returns the number of the chunk that an entry is; false when it is none, or deletes one.
func ChunkOf(e codec.Entry) (seq uint64, is bool) {
	if !IsChunk(e) || e.Deleted {
		return 0, false
	}
	seq, err := parseChunkKey(e.Key)
	return seq, err == nil
}

// Size returns about how many bytes the journal takes on the disk.
func (j *Journal) Size() int64 {
	tables, values := j.db.Size()
	return tables + values
}

// Tapped returns what the commits after since, up to and including version, have written, one value for each commit:
// entries as codec.AppendEntry appends them. It reports false when it does not have all of them. The values must not be
// changed. From the first call on, the journal remembers up to 64 MiB of what it commits. What was written up to the commit
// unneeded is forgotten.
func (j *Journal) Tapped(since, version, unneeded uint64) (commits [][]byte, ok bool) {
	if j.committer == nil {
		return nil, false
	}
	if j.committer.tap.CompareAndSwap(nil, &tap{}) {
		return nil, false
	}
	return j.committer.tap.Load().take(since, version, unneeded)
}
