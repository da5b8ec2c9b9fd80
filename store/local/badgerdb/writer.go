package badgerdb

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"
	"github.com/dgraph-io/ristretto/v2/z"

	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
	"mtagd/store/local/space"
)

// memTable has the entries that are in no table yet. It has no pointers, which the garbage collector would follow.
type memTable struct {
	bytes   []byte // key, value, key, value …
	entries []memEntry
}

type memEntry struct {
	from, key, value   uint32 // where the key begins in bytes; the lengths of key and value
	deleted            bool
	version, expiresAt uint64
}

func (m *memTable) key(e memEntry) []byte { return m.bytes[e.from : e.from+e.key] }

// checkSizes refuses an entry that does not fit into a table. A backup that somebody has forged may have one.
func checkSizes(e *codec.Entry) error {
	if len(e.Key) == 0 || len(e.Key) > maxKeyBytes || len(e.Value) > maxValueBytes {
		return fmt.Errorf("the key (%d bytes) or the value (%d bytes) of an entry has the wrong size", len(e.Key), len(e.Value))
	}
	return nil
}

func (m *memTable) add(e *codec.Entry) {
	if m.bytes == nil {
		m.bytes = make([]byte, 0, memTableBytes/2)
	}
	from, value := uint32(len(m.bytes)), e.Value
	if e.Deleted {
		value = nil
	}
	m.bytes = append(append(m.bytes, e.Key...), value...)
	m.entries = append(m.entries, memEntry{from, uint32(len(e.Key)), uint32(len(value)), e.Deleted, e.Version, e.ExpiresAt})
}

func (m *memTable) isFull() bool { return len(m.bytes)+len(m.entries)*8 >= memTableBytes }

// build adds the newest entry of each key to a table.
func (m *memTable) build(b *builder) {
	sorted := m.sorted()
	for i, p := range sorted {
		e := m.entries[p.entry]
		key := m.key(e)
		if i > 0 && sorted[i-1].first == p.first && bytes.Equal(m.key(m.entries[sorted[i-1].entry]), key) {
			continue
		}
		b.add(&codec.Entry{Key: key, Value: m.bytes[e.from+e.key : e.from+e.key+e.value], Version: e.version, ExpiresAt: e.expiresAt, Deleted: e.deleted})
	}
}

// sortPlace is where an entry comes in a table: by the first bytes of its key, as big-endian numbers.
// They are a byte for the kind, a merchant, and most of a hash. Hardly any two entries have the same,
// so a sort need not read keys, which are all over the memory.
type sortPlace struct {
	first [3]uint64
	entry uint32
}

// sorted returns the order of the entries: by key, then the newest version first, then the last entry of a version first.
func (m *memTable) sorted() []sortPlace {
	all := make([]sortPlace, len(m.entries))
	for i, e := range m.entries {
		var first [24]byte
		copy(first[:], m.key(e))
		all[i].entry = uint32(i)
		for n := range all[i].first {
			all[i].first[n] = binary.BigEndian.Uint64(first[8*n:])
		}
	}
	slices.SortFunc(all, func(a, b sortPlace) int {
		for n := range a.first {
			if a.first[n] != b.first[n] {
				return cmp.Compare(a.first[n], b.first[n])
			}
		}
		x, y := m.entries[a.entry], m.entries[b.entry]
		return cmp.Or(bytes.Compare(m.key(x), m.key(y)), cmp.Compare(y.version, x.version), cmp.Compare(b.entry, a.entry))
	})
	return all
}

// builder makes one table after the other.
type builder struct {
	pool     *z.AllocatorPool
	size     int            // bytes of a table, about
	table    *table.Builder // nil: it has no entries
	contents contents
	bytes    int // of the table so far, about
	key      []byte
	file     []byte
}

func newBuilder(size int) *builder { return &builder{pool: z.NewAllocatorPool(1), size: size} }

// release frees the builder's memory.
func (b *builder) release() {
	if b.table != nil {
		b.table.Close()
	}
	b.pool.Release()
}

// add adds an entry. Entries come in the order of their keys. Hashes do not compress, so tables are not compressed.
// Their Bloom filters have 15 bits for each key, because a look-up may ask the filters of dozens of tables.
func (b *builder) add(e *codec.Entry) {
	if b.table == nil {
		// 5/8, because the builder first allocates twice TableSize
		b.table = table.NewTableBuilder(table.Options{TableSize: uint64(b.size) * 5 / 8, BlockSize: 4 << 10, BloomFalsePositive: 0.001,
			Compression: options.None, AllocPool: b.pool})
		b.contents, b.bytes = contents{}, 0
	}
	b.key = binary.BigEndian.AppendUint64(append(b.key[:0], e.Key...), math.MaxUint64-e.Version)
	v := y.ValueStruct{Value: e.Value, ExpiresAt: e.ExpiresAt}
	if e.Deleted {
		v = y.ValueStruct{Meta: metaDelete}
	}
	b.contents.join(contentsOf(e))
	b.bytes += len(b.key) + len(v.Value) + 8
	b.table.Add(b.key, v, 0)
}

// write writes the table to a file, and reads it back. It calls use, if there is one, with the keys and values.
func (b *builder) write(dir string, id uint64, pace func() error, use func(key []byte, v y.ValueStruct)) (*tableFile, error) {
	done := b.table.Done()
	b.file = slices.Grow(b.file[:0], done.Size)[:done.Size]
	done.Copy(b.file)
	b.table.Close()
	b.table = nil
	if err := durable.ReplaceFile(tablePath(dir, id), b.file); err != nil {
		return nil, err
	}
	t, err := openTable(dir, id)
	if err != nil {
		return nil, err
	}
	found, err := t.readAll(pace, use)
	if err == nil && found != b.contents {
		err = damaged(t.path, "%d entries were written, but it has %d, or other ones", b.contents.entries, found.entries)
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// writeTable writes the memtable as a table, which counts from the next Flush on, and empties it. After an error the
// memtable is unchanged. The caller holds writing.
func (d *DB) writeTable() error {
	h := d.current()
	if err := h.prepare(); err != nil || len(d.memory.entries) == 0 {
		return err
	}
	b := newBuilder(len(d.memory.bytes) + 32*len(d.memory.entries))
	defer b.release()
	d.memory.build(b)
	id := uint64(1)
	for n := range h.list.tables {
		id = max(id, n+1)
	}
	t, err := b.write(h.dir, id, atOnce, h.sharedFilter().addKey)
	if err != nil {
		return err
	}
	h.list.tables[id] = listed{t.size, b.contents, t.sum}
	h.unread = append(h.unread, t)
	d.memory = memTable{}
	return nil
}

// margin is how many bytes stay free: a nearly full disk is slow, and freeing space takes some space itself.
const margin = 24 << 20

// ErrNearlyFull says that nothing was written because the disk is nearly full.
var ErrNearlyFull = errors.New("the disk is nearly full")

// IsNearlyFull reports whether an error says that nothing was written because the disk is nearly full.
func IsNearlyFull(err error) bool { return errors.Is(err, ErrNearlyFull) || space.IsFull(err) }

// Room returns an error when the disk has too little space to write this many bytes of tables.
func (d *DB) Room(bytes int64) error {
	if free, err := space.Free(d.dir); err == nil && free < bytes+margin {
		return ErrNearlyFull
	}
	return nil
}
