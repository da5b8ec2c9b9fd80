package badgerdb

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"
	"github.com/dgraph-io/ristretto/v2/z"

	"mtagd/store/local/durable"
)

// memTable is what was committed and is in no table yet. It has no pointers that the garbage collector would follow.
type memTable struct {
	bytes   []byte // keys and values, one after the other
	entries []memEntry
}

type memEntry struct {
	from, key, value   uint32 // where the key begins in bytes; the lengths of key and value
	deleted            bool
	version, expiresAt uint64
}

func (m *memTable) key(e memEntry) []byte { return m.bytes[e.from : e.from+e.key] }

func (m *memTable) add(key []byte, e entry) {
	if m.bytes == nil {
		m.bytes = make([]byte, 0, memTableBytes+MaxValueBytes)
	}
	from := uint32(len(m.bytes))
	m.bytes = append(append(m.bytes, key...), e.value...)
	m.entries = append(m.entries, memEntry{from, uint32(len(key)), uint32(len(e.value)), e.deleted, e.version, e.expiresAt})
}

// cut removes all but the first entries.
func (m *memTable) cut(entries int) {
	if entries < len(m.entries) {
		m.bytes, m.entries = m.bytes[:m.entries[entries].from], m.entries[:entries]
	}
}

func (m *memTable) isFull() bool { return len(m.bytes)+len(m.entries)*8 >= memTableBytes }

// build makes a table. Of the entries with the same key and version, the last one counts.
func (m *memTable) build(b *builder) {
	slices.SortFunc(m.entries, func(a, b memEntry) int {
		if order := bytes.Compare(m.key(a), m.key(b)); order != 0 {
			return order
		}
		if a.version != b.version {
			return cmp.Compare(b.version, a.version)
		}
		return cmp.Compare(a.from, b.from)
	})
	for i, e := range m.entries {
		key := m.key(e)
		if i+1 < len(m.entries) && m.entries[i+1].version == e.version && bytes.Equal(m.key(m.entries[i+1]), key) {
			continue
		}
		value := m.bytes[e.from+e.key : e.from+e.key+e.value]
		b.add(key, entry{value, e.version, e.expiresAt, e.deleted}, contentsOf(key, e.version, value))
	}
}

// builder makes one table after the other.
type builder struct {
	pool     *z.AllocatorPool
	size     int            // about how large a table becomes, in bytes
	table    *table.Builder // nil: it has no entries yet
	contents contents
	bytes    int // about the size of the table
	key      []byte
	file     []byte
}

func newBuilder(size int) *builder { return &builder{pool: z.NewAllocatorPool(1), size: size} }

// release ends the builder.
func (b *builder) release() {
	if b.table != nil {
		b.table.Close()
	}
	b.pool.Release()
}

// add adds an entry, whose contents are one. They come in the order of their keys, of each key the newest first. The options of a table: it is not compressed, as
// what is in it does not compress; and a look-up of a new key asks the filters of dozens of tables, so they have 15 bits for each key.
func (b *builder) add(key []byte, e entry, one contents) {
	if b.table == nil {
		// the builder allocates twice TableSize at first
		b.table = table.NewTableBuilder(table.Options{TableSize: uint64(b.size) * 5 / 8, BlockSize: 4 << 10, BloomFalsePositive: 0.001,
			Compression: options.None, AllocPool: b.pool})
		b.contents, b.bytes = contents{}, 0
	}
	b.key = binary.BigEndian.AppendUint64(append(b.key[:0], key...), math.MaxUint64-e.version)
	v := y.ValueStruct{Value: e.value, ExpiresAt: e.expiresAt}
	if e.deleted {
		v = y.ValueStruct{Meta: metaDelete}
	}
	b.contents.join(one)
	b.bytes += len(b.key) + len(v.Value) + 8
	b.table.Add(b.key, v, 0)
}

// write writes the table to a file, and reads it back. use gets the keys.
func (b *builder) write(dir string, id uint64, pace func() error, use func(key []byte)) (*tableFile, error) {
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
	found, err := t.readAll(pace, func(key []byte, _ y.ValueStruct) { use(key) })
	if err == nil && found != b.contents {
		err = damaged(t.path, "%d entries were written, but it has %d, or other ones", b.contents.entries, found.entries)
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// writable returns an error when nothing can be committed. It makes a table of the memtable when that is full. The caller holds writing.
func (d *DB) writable() error {
	if err := cmp.Or(d.failed, d.room(0)); err != nil || !d.memory.isFull() {
		return err
	}
	return d.writeTable()
}

// writeTable makes a table of the memtable. It counts when the list has it. So a table has whole commits, as the list may be lost. After an
// error the memtable is as before. The caller holds writing.
func (d *DB) writeTable() error {
	h := d.current()
	if err := h.prepare(); err != nil || len(d.memory.entries) == 0 {
		return err
	}
	b := newBuilder(len(d.memory.bytes) + 32*len(d.memory.entries))
	defer b.release()
	d.memory.build(b)
	now := h.tables.Load()
	filter := now.filter
	if filter == nil {
		filter = new(keyFilter)
	}
	id := h.newest() + 1
	t, err := b.write(h.dir, id, atOnce, func(key []byte) { filter.add(y.Hash(key)) })
	if err != nil {
		return err
	}
	h.list.tables[id] = listed{t.size, b.contents, t.sum}
	h.tables.Store(now.with([]*tableFile{t}, filter))
	d.memory = memTable{}
	return nil
}
