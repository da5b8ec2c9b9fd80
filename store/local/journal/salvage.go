package journal

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"

	"os"
	"path/filepath"
	"slices"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"

	"mtagd/store/local/codec"
	"mtagd/store/local/space"
)

// Salvaged is what Salvage has found.
type Salvaged struct {
	Chunks []uint64 // numbers of the chunks in the new journal, sorted
	Lost   []uint64 // numbers of the chunks that are listed but could not be read, sorted
}

// Has reports whether the new journal has a chunk.
func (s Salvaged) Has(seq uint64) bool {
	_, found := slices.BinarySearch(s.Chunks, seq)
	return found
}

// Salvage writes what can be read of journals into a new one in the directory to, which must be empty or missing. It reads
// tables and logs one by one, without MANIFEST, and looks for sound records behind damage. The directories may have the same
// entries. It changes nothing in them. Damage is passed to wrong, with the file's path.
//
// It may find events that were not acknowledged, as a failed write has left them in a log: a sender may have sent these again.
func Salvage(ctx context.Context, dirs []string, to string, opt Options, wrong func(path string, err error)) (Salvaged, error) {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return Salvaged{}, err
	}
	// Nothing is acknowledged before the end, so single commits need no sync.
	db, err := badger.OpenManaged(badgerOptions(to).WithLogger(&badgerLog{log: opt.Log}).WithSyncWrites(false))
	if err != nil {
		return Salvaged{}, err
	}
	s := salvager{to: to, batch: db.NewManagedWriteBatch(), fits: isKey}
	for _, kind := range []struct {
		ext  string
		read func(b []byte) error
	}{{".vlog", s.valueLog}, {".mem", s.memLog}, {".sst", s.table}} {
		for _, dir := range dirs {
			if err == nil {
				err = s.files(ctx, dir, kind.ext, kind.read, wrong)
			}
		}
	}
	if err == nil {
		err = s.batch.Flush()
	} else {
		s.batch.Cancel()
	}
	if err := errors.Join(err, db.Sync(), db.Close()); err != nil {
		return Salvaged{}, err
	}
	slices.Sort(s.found)
	slices.Sort(s.listed)
	result := Salvaged{Chunks: slices.Compact(s.found)}
	for _, seq := range slices.Compact(s.listed) {
		if !result.Has(seq) {
			result.Lost = append(result.Lost, seq)
		}
	}
	return result, nil
}

// salvager writes the new journal.
type salvager struct {
	to    string
	batch *badger.WriteBatch
	bytes int64 // that may be written before the free space is read again

	fits func(key []byte) bool                                              // which keys the database has
	take func(key []byte, version uint64, deleted bool, value []byte) error // gets the entries; nil: they are the journal's

	found  []uint64 // chunks that were written
	listed []uint64 // chunks of which a table or a memtable knows that they are in a value log
	failed error    // of writing
}

// files reads all files of a directory that have this extension.
func (s *salvager) files(ctx context.Context, dir, ext string, read func(b []byte) error, wrong func(path string, err error)) error {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, f := range files {
		if filepath.Ext(f.Name()) != ext {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		path := filepath.Join(dir, f.Name())
		b, err := os.ReadFile(path)
		if err == nil {
			err = catchDamage(func() error { return read(b) })
		}
		if s.failed != nil {
			return s.failed
		}
		if err != nil {
			wrong(path, err)
		}
	}
	return nil
}

// valueLog writes the chunks of a value log.
func (s *salvager) valueLog(b []byte) error {
	return s.log(b, func(key []byte) bool { return len(key) == 9+8 && key[0] == prefixChunk })
}

// memLog writes the entries of the log of a memtable.
func (s *salvager) memLog(b []byte) error {
	return s.log(b, func(key []byte) bool {
		return len(key) > 8 && s.fits(key[:len(key)-8]) || bytes.HasPrefix(key, []byte("!badger!"))
	})
}

// isKey reports whether a key is one of the journal's.
func isKey(key []byte) bool {
	n := map[byte]int{prefixChunk: 9, prefixLink: 49, prefixFormer: formerKeyBytes, prefixLinked: 33, prefixIndexed: 1, prefixDedupe: 33, prefixOldDedupe: 33, prefixFormat: 1, prefixForgotten: 1}
	return len(key) > 0 && n[key[0]] == len(key)
}

// log writes the entries of a log. Behind damage it looks for the next sound record with such a key.
func (s *salvager) log(b []byte, fits func(key []byte) bool) error {
	end := usedLength(b)
	damaged := 0
	for at := logHeader; at < end; {
		key, size, ok := recordSize(b[at:])
		ok = ok && fits(key) && crc32.Checksum(b[at:at+size-crc32.Size], castagnoli) == binary.BigEndian.Uint32(b[at+size-crc32.Size:])
		if !ok {
			damaged++
			at++
			continue
		}
		s.record(b[at:at+size], key)
		at += size
	}
	if damaged > 0 {
		return fmt.Errorf("%w: %d bytes of it cannot be read", codec.ErrCorrupt, damaged)
	}
	return nil
}

// record writes the entry of a sound record.
func (s *salvager) record(b, key []byte) {
	at := 2
	var sizes [3]uint64 // of key and value; the expiry
	for i := range sizes {
		v, n := binary.Uvarint(b[at:])
		sizes[i], at = v, at+n
	}
	value := b[at+len(key):][:sizes[1]]
	s.entry(key, y.ValueStruct{Meta: b[0], ExpiresAt: sizes[2], Value: value})
}

const metaDelete = 1 << 0

// entry writes an entry; its key has the version. Of chunks it writes only those that can be decoded.
func (s *salvager) entry(versioned []byte, v y.ValueStruct) {
	key, version := bytes.Clone(y.ParseKey(versioned)), y.ParseTs(versioned)
	if !s.fits(key) || s.failed != nil {
		return // Badger's own
	}
	if s.take != nil {
		s.failed = s.take(key, version, v.Meta&metaDelete != 0, v.Value)
		return
	}
	if v.Meta&metaDelete != 0 {
		s.failed = s.batch.DeleteAt(key, version)
		return
	}
	if key[0] == prefixChunk {
		seq := binary.BigEndian.Uint64(key[1:])
		if v.Meta&metaPointer != 0 {
			s.listed = append(s.listed, seq)
			return
		}
		data, err := unpackChunk(nil, v.Value)
		if err == nil {
			_, err = appendEvents(nil, data, seq)
		}
		if err != nil {
			s.listed = append(s.listed, seq)
			return
		}
		s.found = append(s.found, seq)
	}
	e := badger.NewEntry(key, bytes.Clone(v.Value))
	e.ExpiresAt = v.ExpiresAt
	if s.failed = s.makeRoom(len(key) + len(v.Value)); s.failed == nil {
		s.failed = s.batch.SetEntryAt(e, version)
	}
}

// makeRoom returns an error when the disk is nearly full: Badger writes to memory maps, and a full disk ends the process.
func (s *salvager) makeRoom(bytes int) error {
	const every = 16 << 20
	if s.bytes -= int64(bytes); s.bytes >= 0 {
		return nil
	}
	s.bytes = every
	free, err := space.Free(s.to)
	if err == nil && free < MinFree+4*every+newLog+newMemLog {
		err = errors.New("the disk is nearly full")
	}
	return err
}

// table writes the entries of a table, and lists the chunks that are in value logs. Around a damaged block it reads from both
// ends.
func (s *salvager) table(b []byte) error {
	_, damage := checkTable(b, false) // also corrects b
	t, err := table.OpenInMemoryTable(b, 0, &table.Options{ChkMode: options.OnBlockRead})
	if err != nil {
		return errors.Join(damage, err)
	}
	t.IncrRef() // Badger deletes the file of a table without references
	read := uint32(0)
	for _, direction := range []int{0, table.REVERSED} {
		if err := catchDamage(func() error {
			it := t.NewIterator(direction | table.NOCACHE)
			defer it.Close()
			for it.Rewind(); it.Valid(); it.Next() {
				s.entry(it.Key(), it.Value())
				read++
			}
			return nil
		}); err != nil {
			damage = errors.Join(damage, err)
		}
		if read >= t.KeyCount() {
			break
		}
	}
	if read < t.KeyCount() {
		damage = fmt.Errorf("%d of its %d entries cannot be read: %w", t.KeyCount()-read, t.KeyCount(), damage)
	}
	return damage
}
