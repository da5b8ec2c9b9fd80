package journal

import (
	"cmp"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"

	"mtagd/store/local/codec"
	"mtagd/store/local/log"
)

// A checkpoint lists the chunks in the log before a position, so that a start reads only the records after it. It is
// written after each flush, so the links and event_ids of the records before it are in the database. It is not synced:
// without one that fits, the start reads the whole log. Damage before the position is found when a chunk is read. While
// a part of the log is known to be lost, none is written, so that each start sees the loss until that part is removed.
//
// The file events/checkpoint is sealed (codec.Seal) with its name as the key. It has uvarints: the position, the
// checksum of the record before it (log.Before), the greatest version before it, and the number of chunks; for each
// chunk its number, version and position, less those of the chunk before, its place in the record, and how many events.
const checkpointFile = "checkpoint"

// roomForChunks is room in the list for the chunks of about flushBytes of records: the first one would cost a copy of the
// list.
const roomForChunks = 16 << 10

// writeCheckpoint notes the chunks before a mark, up to which all is flushed. version is the greatest before it.
func (j *Journal) writeCheckpoint(m mark, version uint64) error {
	chunks := j.chunks.between(0, math.MaxUint64)
	n, _ := slices.BinarySearchFunc(chunks, m.at, func(s stored, at log.Position) int { return cmp.Compare(s.at, at) })
	var b []byte
	for _, n := range []uint64{uint64(m.at), uint64(m.sum), version, uint64(n)} {
		b = binary.AppendUvarint(b, n)
	}
	last := stored{}
	for _, s := range chunks[:n] {
		for _, n := range []uint64{s.seq - last.seq, s.version - last.version, uint64(s.at - last.at), uint64(s.from), uint64(s.to), uint64(s.events)} {
			b = binary.AppendUvarint(b, n)
		}
		last = s
	}
	path := filepath.Join(j.dir, checkpointFile)
	err := os.WriteFile(path+".new", codec.Seal([]byte(checkpointFile), b), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	return err
}

// readCheckpoint takes in the chunks of the checkpoint after forgotten, and returns its position. It returns false, and
// takes in nothing, when the checkpoint does not fit the log, or the database lacks what was flushed before it.
func (j *Journal) readCheckpoint(flushed log.Position, forgotten uint64) (at log.Position, ok bool) {
	sealed, err := os.ReadFile(filepath.Join(j.dir, checkpointFile))
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			j.opt.Log.Warn("the whole log of events is read, because its checkpoint cannot be read", "error", err)
		}
		return 0, false
	}
	d := codec.Decoder{B: codec.Unseal([]byte(checkpointFile), sealed)}
	at, sum, version := log.Position(d.Uvarint()), d.Uvarint(), d.Uvarint()
	list := make([]stored, 0, d.Count()+roomForChunks)
	for s := (stored{}); len(d.B) > 0; {
		s.seq, s.version, s.at = s.seq+d.Uvarint(), s.version+d.Uvarint(), s.at+log.Position(d.Uvarint())
		s.from, s.to, s.events = int(d.Uvarint()), int(d.Uvarint()), int(d.Uvarint())
		if s.seq > forgotten {
			list = append(list, s)
		}
	}
	if d.Err(checkpointFile) != nil || at > flushed || len(list) > 0 && list[0].at < j.log.First() {
		return 0, false
	}
	if before, err := j.log.Before(at); err != nil || uint64(before) != sum { // the log ends earlier, or has other records there
		return 0, false
	}
	j.chunks.list = list
	j.last = max(j.last, version, j.chunks.last(math.MaxUint64))
	return at, true
}
