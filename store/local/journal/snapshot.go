package journal

import (
	"context"
	"errors"
	"math"
	"slices"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
	"mtagd/store/local/log"
)

// Snapshot is the journal as of one commit. The journal keeps what the snapshot needs until Close.
type Snapshot struct {
	Version uint64 // of the last commit that is in it

	j      *Journal
	chunks []stored
	keys   badgerdb.Snapshot
}

// Snapshot returns the journal as of the last commit.
func (j *Journal) Snapshot() (s Snapshot, err error) {
	j.copying.Lock()
	defer j.copying.Unlock()
	j.flushes.Lock()
	defer j.flushes.Unlock()
	s.j = j
	if err := j.flushKeys(func() {
		s.Version, s.chunks = j.Version(), j.chunks.between(0, math.MaxUint64)
	}); err != nil {
		return Snapshot{}, err
	}
	s.keys = j.keys.db.Snapshot()
	j.copies++
	return s, nil
}

// Close lets the journal drop what only the snapshot needed. It does nothing for the zero value.
func (s Snapshot) Close() {
	if s.j != nil {
		s.j.copying.Lock()
		defer s.j.copying.Unlock()
		s.j.copies--
		s.keys.Close()
	}
}

// Entries calls use with the newest entry of each key that was written or deleted after the commit since, and how many events
// it has. It may also pass older links, because the database does not know when a link was made. Expired entries are left
// out. An entry is valid until use returns. Chunks come first, in the order of receipt.
//
// Damaged chunks are left out, too: damaged is called with their numbers.
func (s Snapshot) Entries(ctx context.Context, since uint64, use func(e codec.Entry, events int) error, damaged func(seq uint64, err error)) error {
	if err := s.chunkEntries(ctx, since, use, damaged); err != nil {
		return err
	}
	return s.keys.View(func(txn *badgerdb.Txn) error {
		return txn.Each(ctx, badgerdb.IteratorOptions{Deletions: true, Since: since}, func(e *codec.Entry) error {
			if e.ExpiresAt != 0 && e.Deleted {
				return nil // it has expired
			}
			return use(*e, 0)
		})
	})
}

func (s Snapshot) chunkEntries(ctx context.Context, since uint64, use func(e codec.Entry, events int) error, damaged func(seq uint64, err error)) error {
	r := reader{chunks: &s.j.chunks}
	for _, c := range s.chunks {
		if c.version <= since {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		packed, err := r.packed(c)
		e, events := codec.Entry{Key: appendChunkKey(nil, c.seq), Value: packed, Version: c.version}, 0
		if err == nil {
			events, err = CheckEntry(e)
		}
		if err != nil {
			damaged(c.seq, err)
			continue
		}
		if err := use(e, events); err != nil {
			return err
		}
	}
	return nil
}

// Counter returns a function that counts the events of the chunks after the chunk seq, up to the commit with this version.
// Call Counter while nobody can forget chunks, and the function while a snapshot is open, or after KeepLog.
func (j *Journal) Counter(seq, version uint64) func() (events int, err error) {
	chunks := j.chunks.between(seq, j.chunks.last(version))
	return func() (int, error) { return j.chunks.count(chunks) }
}

// CheckEntry returns how many events an entry has; 0 if it is no chunk. A chunk that does not decode is an error.
func CheckEntry(e codec.Entry) (events int, err error) {
	if e.Deleted || !IsChunk(e) {
		return 0, checkFormatEntry(e)
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
		decodeEvent(&d, store.Position{Seq: seq})
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
	return int64(j.log.End()-j.log.First()) + j.keys.db.TableBytes()
}

// moment is a commit, and the end of the log after it.
type moment struct {
	version uint64
	end     log.Position
}

// maxRecent bounds the bytes of the log that stay for Recent.
const maxRecent = 32 << 20

// KeepLog keeps all records of the log until release is called. It waits for a purge.
func (j *Journal) KeepLog() (release func()) {
	j.copying.Lock()
	defer j.copying.Unlock()
	j.copies++
	return func() {
		j.copying.Lock()
		defer j.copying.Unlock()
		j.copies--
	}
}

// Recent returns a function that passes all entries of the commits after since, up to and including version. It reads them
// from the log, which suits a backup every few seconds: in the database, new links and event_ids are spread over all tables.
// entries is nil when the log may lack some of them. Of several entries with one key, the last one counts. From the first
// call until Purge, the log keeps the records after the commit unneeded, up to maxRecent bytes. The caller has called
// KeepLog.
func (j *Journal) Recent(since, unneeded uint64) (version uint64, entries func(use func(codec.Entry) error) error) {
	release := j.holdCommits()
	now := moment{j.Version(), j.log.End()}
	release()
	j.recent.Lock()
	defer j.recent.Unlock()
	before := func(version uint64) (n int) { // the number of moments up to a commit
		for n < len(j.moments) && j.moments[n].version <= version {
			n++
		}
		return n
	}
	from := now.end
	i := before(since) - 1
	if i >= 0 {
		from = j.moments[i].end
	}
	j.moments = slices.Delete(append(j.moments, now), 0, max(0, before(min(since, unneeded))-1))
	if i < 0 && since < now.version {
		return now.version, nil
	}
	return now.version, func(use func(codec.Entry) error) error {
		if from == now.end {
			return nil
		}
		err := j.log.Replay(from, func(at log.Position, record []byte) error {
			if at >= now.end {
				return errPassed
			}
			return eachEntry(record, func(e codec.Entry, _ int) error {
				if e.Version <= since {
					return nil
				}
				return use(e)
			})
		})
		if errors.Is(err, errPassed) {
			return nil
		}
		if errors.Is(err, log.ErrDamaged) {
			j.forgetRecent() // so that the next backup does not need these records
		}
		return err
	}
}

var errPassed = errors.New("all is passed")

// keptForRecent returns the position of the first record that Recent may need, or end if it needs none.
func (j *Journal) keptForRecent(end log.Position) log.Position {
	j.recent.Lock()
	defer j.recent.Unlock()
	last := j.log.End()
	j.moments = slices.DeleteFunc(j.moments, func(m moment) bool { return last-m.end > maxRecent })
	if len(j.moments) == 0 {
		return end
	}
	return min(end, j.moments[0].end)
}

// forgetRecent frees the log from keeping records for Recent.
func (j *Journal) forgetRecent() {
	j.recent.Lock()
	defer j.recent.Unlock()
	j.moments = nil
}
