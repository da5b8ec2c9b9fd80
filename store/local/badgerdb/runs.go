package badgerdb

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4/y"

	"mtagd/store/local/codec"
)

// tables are those of a part. It does not change.
type tables struct {
	all    []*tableFile
	runs   []run
	filter *keyFilter // of all keys; nil while FilterTables has not read those that were there when the part was opened
}

// run is tables that are sorted and have no key in common.
type run []*tableFile

func newTables(all []*tableFile, filter *keyFilter) *tables {
	return &tables{all, inRuns(all), filter}
}

// inRuns sorts tables into few runs: one for what Compact has written, and about one for each Flush since.
func inRuns(all []*tableFile) (runs []run) {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b *tableFile) int { return bytes.Compare(a.smallest, b.smallest) })
	for _, f := range sorted {
		i := slices.IndexFunc(runs, func(r run) bool { return bytes.Compare(r[len(r)-1].largest, f.smallest) < 0 })
		if i < 0 {
			runs, i = append(runs, nil), len(runs)
		}
		runs[i] = append(runs[i], f)
	}
	return runs
}

// find looks for the entries of a key. It returns a Damage when a block that may have some cannot be read.
func (r run) find(key []byte, hash uint32, buf *buffer, n *newest) error {
	i := sort.Search(len(r), func(i int) bool { return bytes.Compare(r[i].largest, key) >= 0 })
	if i == len(r) || bytes.Compare(r[i].smallest, key) > 0 {
		return nil
	}
	f := r[i]
	if len(f.filter) > 0 && !f.filter.MayContain(hash) {
		return nil
	}
	buf.key = append(append(buf.key[:0], key...), 0, 0, 0, 0, 0, 0, 0, 0) // the newest version
	block := f.block(buf.key)
	for more := true; more && block < f.blocks; block++ { // the versions of a key may begin at the start of the next one
		b, err := f.readBlock(block, buf)
		if err != nil {
			return err
		}
		e, err := entriesOf(b, buf)
		if err == nil {
			n.reading = f.id
			more, err = e.find(key, n)
		}
		if err != nil {
			return &Damage{f.path, err}
		}
	}
	return nil
}

// keyFilter is a Bloom filter of the keys of many tables. Each has one of its own, but to ask dozens of them takes
// microseconds. The bits of a key are in one cache line. With 4 million keys, two of a hundred others pass.
type keyFilter [filterWords]atomic.Uint64

const (
	filterWords = 1 << 19 // 4 MiB
	lineWords   = 8
	bitsOfKey   = 5
)

// line returns where the bits of a key are, and a number that says which ones they are.
func line(hash uint32) (from int, mixed uint64) {
	mixed = uint64(hash) * 0x9e3779b97f4a7c15
	mixed = (mixed ^ mixed>>32) * 0xd6e8feb86659fd93
	return int(mixed>>48) * lineWords, mixed
}

func (f *keyFilter) add(hash uint32) {
	from, mixed := line(hash)
	for range bitsOfKey {
		f[from+int(mixed>>6%lineWords)].Or(1 << (mixed % 64))
		mixed >>= 9
	}
}

func (f *keyFilter) addKey(key []byte, _ y.ValueStruct) { f.add(y.Hash(key)) }

func (f *keyFilter) mayHave(hash uint32) bool {
	from, mixed := line(hash)
	for range bitsOfKey {
		if f[from+int(mixed>>6%lineWords)].Load()&(1<<(mixed%64)) == 0 {
			return false
		}
		mixed >>= 9
	}
	return true
}

// newest is the newest entry of a key, of those that were taken.
type newest struct {
	codec.Entry
	known          bool
	table, reading uint64 // numbers: the entry's table, and the table that is read. Of equal versions, the one in the newest table counts
}

func (n *newest) take(version uint64, v y.ValueStruct) {
	if !n.known || version > n.Version || version == n.Version && n.reading > n.table {
		n.Entry = codec.Entry{Value: append(n.Value[:0], v.Value...), Version: version, ExpiresAt: v.ExpiresAt, Deleted: v.Meta&metaDelete != 0}
		n.known, n.table = true, n.reading
	}
}

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// Get returns the value of a key, as of the last Flush. A block that may have it and cannot be read is a Damage.
func (d *DB) Get(key []byte) (value []byte, found bool, err error) {
	parts := d.acquire()
	defer d.release(parts)
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	for _, h := range parts {
		buf.tables = append(buf.tables, h.tables.Load())
	}
	value, found, err = get(buf.tables, key, buf)
	clear(buf.tables) // they may be closed soon
	buf.tables = buf.tables[:0]
	d.noteDamage(err)
	return value, found, err
}

// FilterTables makes look-ups of new keys as cheap as before a restart: it reads the tables that are in no filter yet, and
// adds their keys to the filter of their part. Other calls may run meanwhile. It calls pace between blocks. When it fails
// in a part, look-ups still search the tables of that part and of later parts one by one.
func (d *DB) FilterTables(ctx context.Context, pace func()) error {
	parts := d.acquire()
	defer d.release(parts)
	for _, h := range parts[firstUnsealed(parts):] { // a sealed one is a single run
		if err := d.filterPart(h, paced(ctx, pace)); err != nil {
			return err
		}
	}
	return nil
}

func (d *DB) filterPart(h *part, pace func() error) error {
	first := h.tables.Load()
	if first.filter != nil || len(first.all) == 0 {
		return nil
	}
	d.writing.Lock()
	filter, listed := h.sharedFilter(), maps.Clone(h.list.tables)
	d.writing.Unlock()
	for _, t := range first.all {
		if !d.counts(h) {
			return nil // CompactAndWait may wait until its tables can be removed
		}
		if err := d.checkTable(t, listed[t.id], pace, filter.addKey); err != nil {
			return err
		}
	}
	d.writing.Lock()
	defer d.writing.Unlock()
	h.tables.Store(newTables(h.tables.Load().all, filter))
	return nil
}
