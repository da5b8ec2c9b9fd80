package badgerdb

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/dgraph-io/badger/v4/fb"
	"github.com/dgraph-io/badger/v4/y"
	"golang.org/x/sys/unix"

	"mtagd/store/local/codec"
)

// A table of Badger is blocks, an index, and a footer:
//
//	block ... | index | length of the index (4) | checksum | length of the checksum (4)
//
// The index is a flatbuffer (badger/fb): the first key, place and length of each block, and a Bloom filter. A block ends
// with its own checksum and the length of that. Lengths are big endian. Checksums are Badger's message pb.Checksum: the byte
// 16, and a CRC-32C as a uvarint; or nothing, when the CRC is 0.

// Damage is a file that cannot be read, or whose data is wrong; codec.ErrCorrupt tells the latter from an error of the disk.
type Damage struct {
	Path string
	Err  error
}

func (d *Damage) Error() string { return fmt.Sprintf("%s is damaged: %v", d.Path, d.Err) }
func (d *Damage) Unwrap() error { return d.Err }

// damaged returns a Damage of wrong data.
func damaged(path, format string, args ...any) *Damage {
	return &Damage{path, fmt.Errorf("%w: %s", codec.ErrCorrupt, fmt.Sprintf(format, args...))}
}

// contents is what a table has, without fillers. sum is the sum of the hashes of the entries, so the order does not matter.
type contents struct{ entries, sum uint64 }

const metaDelete = 1 << 0 // of an entry that deletes its key

// entryOf returns an entry of a table. It aliases key and v.
func entryOf(key []byte, v y.ValueStruct) codec.Entry {
	return codec.Entry{Key: y.ParseKey(key), Value: v.Value, Version: y.ParseTs(key), ExpiresAt: v.ExpiresAt, Deleted: v.Meta&metaDelete != 0}
}

// isLive reports whether an entry is neither a deletion nor expired.
func isLive(e *codec.Entry) bool {
	return !e.Deleted && (e.ExpiresAt == 0 || e.ExpiresAt > uint64(time.Now().Unix()))
}

// contentsOf returns the contents of a table with only this entry.
func contentsOf(e *codec.Entry) contents {
	if string(e.Key) == filler {
		return contents{}
	}
	var buf [128]byte
	b := append(append(binary.BigEndian.AppendUint64(buf[:0], e.Version), e.Key...), 0)
	if len(b)+len(e.Value) <= len(buf) { // a small entry, as most are: one call is faster
		return contents{1, xxhash.Sum64(append(b, e.Value...))}
	}
	var d xxhash.Digest
	d.Reset()
	d.Write(b)
	d.Write(e.Value)
	return contents{1, d.Sum64()}
}

func (c *contents) join(o contents) { c.entries, c.sum = c.entries+o.entries, c.sum+o.sum }

// tableFile is an open table. Its index is in memory, and not in a map of the file: nothing that happens to the file makes a
// key look missing. That takes about 3 MB for a million event_ids.
type tableFile struct {
	id                uint64
	path              string
	file              *os.File
	size              int64
	memory            []byte // of the index; the garbage collector does not count it
	index             *fb.TableIndex
	sum               uint32 // of the index
	from              int64  // where the index begins
	blocks            int
	version           uint64 // the greatest
	entries           uint32
	filter            y.Filter
	smallest, largest []byte // keys, without versions
}

func tablePath(dir string, id uint64) string { return filepath.Join(dir, fmt.Sprintf("%06d.sst", id)) }

// tableID returns the number of a table; false when the file is none.
func tableID(name string) (uint64, bool) {
	number, is := strings.CutSuffix(name, ".sst")
	id, err := strconv.ParseUint(number, 10, 64)
	return id, is && err == nil
}

// openTable opens a table. It checks the index and the last block.
func openTable(dir string, id uint64) (t *tableFile, err error) {
	t = &tableFile{path: tablePath(dir, id), id: id}
	if t.file, err = os.Open(t.path); err != nil {
		if errors.Is(err, fs.ErrNotExist) { // unlike another error, it stays
			err = fmt.Errorf("%w: %w", codec.ErrCorrupt, err)
		}
		return nil, &Damage{t.path, err}
	}
	if err = t.load(); err == nil {
		t.smallest = bytes.Clone(y.ParseKey(t.place(0).key))
		var last []byte
		if last, err = t.readBlock(t.blocks-1, &buffer{}); err == nil {
			err = eachInBlock(last, func(key []byte, _ y.ValueStruct) { t.largest = append(t.largest[:0], y.ParseKey(key)...) })
		}
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// load reads the index, and checks it: the blocks follow each other without gaps.
func (t *tableFile) load() (err error) {
	info, err := t.file.Stat()
	if err != nil {
		return &Damage{t.path, err}
	}
	t.size = info.Size()
	index, err := t.readIndex()
	if err != nil {
		return err
	}
	if t.memory, err = unix.Mmap(-1, 0, index.size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE); err != nil {
		return fmt.Errorf("memory for the index of %s: %w", t.path, err)
	}
	copy(t.memory, index.after)
	defer func() {
		if recover() != nil {
			err = damaged(t.path, "index")
		}
	}()
	t.from, t.sum = t.size-int64(len(index.after)), index.sum
	t.index = fb.GetRootAsTableIndex(t.memory, 0)
	t.blocks, t.filter = t.index.OffsetsLength(), t.index.BloomFilterBytes()
	t.version, t.entries = t.index.MaxVersion(), t.index.KeyCount()
	at := int64(0)
	for i := range t.blocks {
		p := t.place(i)
		if p.at != at || len(p.key) < 8 {
			return damaged(t.path, "place of block %d", i)
		}
		at += p.size
	}
	if at != t.from || t.blocks == 0 {
		return damaged(t.path, "places of the blocks")
	}
	return nil
}

func (t *tableFile) close() {
	if t.memory != nil {
		_ = unix.Munmap(t.memory)
	}
	_ = t.file.Close()
}

type footer struct {
	after []byte // from the index to the end of the file
	size  int    // of the index
	sum   uint32 // of the index
}

// readIndex reads the index, and checks it.
func (t *tableFile) readIndex() (footer, error) {
	const longest = 6 + 4 // checksum and its length
	at := min(t.size, longest+4)
	end := make([]byte, at)
	if _, err := t.file.ReadAt(end, t.size-at); err != nil {
		return footer{}, &Damage{t.path, err}
	}
	rest, sum, ok := cutChecksum(end)
	if !ok || len(rest) < 4 {
		return footer{}, damaged(t.path, "footer")
	}
	size := int64(binary.BigEndian.Uint32(rest[len(rest)-4:]))
	all := size + 4 + int64(len(end)-len(rest))
	if size == 0 || all > t.size {
		return footer{}, damaged(t.path, "length of the index")
	}
	b := make([]byte, all)
	if _, err := t.file.ReadAt(b, t.size-all); err != nil {
		return footer{}, &Damage{t.path, err}
	}
	if crc32.Checksum(b[:size], castagnoli) != sum {
		return footer{}, damaged(t.path, "checksum of the index")
	}
	return footer{b, int(size), sum}, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// cutChecksum cuts a checksum and its length off the end of b.
func cutChecksum(b []byte) (rest []byte, sum uint32, ok bool) {
	if len(b) < 4 {
		return nil, 0, false
	}
	b, size := b[:len(b)-4], int(binary.BigEndian.Uint32(b[len(b)-4:]))
	if size > len(b) || size < 0 {
		return nil, 0, false
	}
	rest, message := b[:len(b)-size], b[len(b)-size:]
	if size == 0 {
		return rest, 0, true
	}
	v, n := binary.Uvarint(message[1:])
	return rest, uint32(v), message[0] == 2<<3 && n == size-1 && v == uint64(uint32(v))
}

// place is what the index says of a block: its first key with the version, and its offset and length.
type place struct {
	key      []byte
	at, size int64
}

func (t *tableFile) place(block int) place {
	var o fb.BlockOffset
	t.index.Offsets(&o, block)
	return place{o.KeyBytes(), int64(o.Offset()), int64(o.Len())}
}

// block returns where a key with a version is, if the table has it: in the last block that begins with it or before it.
func (t *tableFile) block(key []byte) int {
	return max(0, sort.Search(t.blocks, func(i int) bool { return y.CompareKeys(t.place(i).key, key) > 0 })-1)
}

// buffer is reused from block to block.
type buffer struct {
	b, key []byte
	tables []*tables // of DB.Get
}

// readBlock reads a block, and checks it. The result is valid until buf is used again.
func (t *tableFile) readBlock(block int, buf *buffer) ([]byte, error) {
	p := t.place(block)
	if int64(cap(buf.b)) < p.size {
		buf.b = make([]byte, p.size+p.size/4)
	}
	b := buf.b[:p.size]
	if _, err := t.file.ReadAt(b, p.at); errors.Is(err, io.EOF) {
		return nil, damaged(t.path, "it is cut short")
	} else if err != nil {
		return nil, &Damage{t.path, err}
	}
	data, sum, ok := cutChecksum(b)
	if !ok || crc32.Checksum(data, castagnoli) != sum {
		return b, damaged(t.path, "checksum of block %d", block) // repair may correct it
	}
	if first := 4 + len(p.key); len(data) < first || !bytes.Equal(data[4:first], p.key) {
		return nil, damaged(t.path, "block %d is another one", block)
	}
	return b, nil
}

// readAll reads a whole table, checks every block, and counts the entries. It calls pace between blocks, and use unless it
// is nil.
func (t *tableFile) readAll(pace func() error, use func(key []byte, v y.ValueStruct)) (c contents, err error) {
	index, err := t.readIndex()
	if err == nil && index.sum != t.sum {
		err = damaged(t.path, "it is another table")
	}
	if err != nil {
		return c, err
	}
	info, err := t.file.Stat()
	if err == nil && info.Size() != t.size {
		return c, damaged(t.path, "it has %d bytes instead of %d", info.Size(), t.size)
	}
	var buf buffer
	n := uint32(0)
	for i := range t.blocks { // with the index they are the whole file
		if err := pace(); err != nil {
			return c, err
		}
		b, err := t.readBlock(i, &buf)
		if err != nil {
			return c, err
		}
		if err := eachInBlock(b, func(key []byte, v y.ValueStruct) {
			n++
			e := entryOf(key, v)
			c.join(contentsOf(&e))
			if use != nil {
				use(y.ParseKey(key), v)
			}
		}); err != nil {
			return c, &Damage{t.path, err}
		}
	}
	if n != t.entries {
		return c, damaged(t.path, "it has %d entries instead of %d", n, t.entries)
	}
	return c, nil
}

// eachInBlock calls use with the entries of a sound block. A block has the entries, the place of each (4 bytes, little
// endian), their number (4), and the checksum. An entry has the length of what its key shares with the first key (2, little
// endian), the length of the rest (2), the rest, and the value.
func eachInBlock(b []byte, use func(key []byte, v y.ValueStruct)) error {
	e, err := entriesOf(b, new(buffer))
	for i := 0; i < e.n && err == nil; i++ {
		var key []byte
		var v y.ValueStruct
		if key, v, err = e.entry(i); err == nil {
			use(key, v)
		}
	}
	return err
}

// blockEntries are the entries of a block.
type blockEntries struct {
	b, places []byte
	n         int
	first     []byte  // key of the first one
	buf       *buffer // of the last key
}

var errEntries = fmt.Errorf("%w: entries of a block", codec.ErrCorrupt)

// entriesOf returns the entries of a sound block.
func entriesOf(b []byte, buf *buffer) (e blockEntries, err error) {
	b, _, ok := cutChecksum(b)
	if !ok || len(b) < 4 {
		return e, errEntries
	}
	b, n := b[:len(b)-4], int(binary.BigEndian.Uint32(b[len(b)-4:]))
	if n > len(b)/4 {
		return e, errEntries
	}
	e = blockEntries{b: b[:len(b)-4*n], places: b[len(b)-4*n:], n: n, buf: buf}
	if n > 0 {
		e.first, _, err = e.entry(0)
	}
	return e, err
}

// entry returns an entry. The key is valid until the next call.
func (e *blockEntries) entry(i int) (key []byte, v y.ValueStruct, err error) {
	from, to := int(binary.LittleEndian.Uint32(e.places[4*i:])), len(e.b)
	if i+1 < e.n {
		to = int(binary.LittleEndian.Uint32(e.places[4*i+4:]))
	}
	if from < 0 || from+4 > to || to > len(e.b) {
		return nil, v, errEntries
	}
	b := e.b[from:to]
	shared, rest := int(binary.LittleEndian.Uint16(b)), int(binary.LittleEndian.Uint16(b[2:]))
	if b = b[4:]; shared > len(e.first) || rest > len(b) || shared+rest < 8 || len(b) < rest+3 {
		return nil, v, errEntries
	}
	v.Decode(b[rest:])
	if shared == 0 { // it is in the block as it is, as the first one always is
		return b[:rest], v, nil
	}
	e.buf.key = append(append(e.buf.key[:0], e.first[:shared]...), b[:rest]...)
	return e.buf.key, v, nil
}

// find takes the entries of a key. It reports whether the next block may have more of them.
func (e *blockEntries) find(key []byte, n *newest) (more bool, err error) {
	i := sort.Search(e.n, func(i int) bool {
		k, _, damage := e.entry(i)
		if damage != nil {
			err = damage
		}
		return damage != nil || bytes.Compare(y.ParseKey(k), key) >= 0
	})
	for ; i < e.n && err == nil; i++ {
		k, v, damage := e.entry(i)
		if damage != nil || !bytes.Equal(y.ParseKey(k), key) {
			return false, damage
		}
		n.take(y.ParseTs(k), v)
	}
	return err == nil, err
}
