package badgerdb

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/dgraph-io/badger/v4/y"

	"mtagd/store/local/codec"
	"mtagd/store/local/crc"
)

// EachEntry reads the tables of a database one by one, and calls use with the entries whose keys fit, in any order, older
// ones and deletions too. An entry is valid until use returns. EachEntry reads every sound block, and those with one wrong
// bit. It passes damage to wrong, and returns the ranges of keys in which some may be lost.
//
// A part never has a table whose entries were deleted from it. So nothing comes back that Compact has removed.
func EachEntry(ctx context.Context, dir string, fits func(key []byte) bool, use func(codec.Entry) error, wrong func(path string, err error)) (lost []Range, err error) {
	counts, _, err := findParts(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var g gaps
	var missing *Damage
	if errors.As(err, &missing) {
		wrong(missing.Path, err)
		g.lose() // any key
		g.end()
	} else if err != nil {
		return nil, err
	}
	for _, name := range counts {
		part := filepath.Join(dir, name)
		l, _ := readList(part)   // only used to notice missing tables
		ids, _ := unlisted(part) // the error says that a table is missing: the loop finds where
		ids = slices.AppendSeq(ids, maps.Keys(l.tables))
		slices.Sort(ids)
		sealed := isSealed(name) // its tables follow each other, those of other parts overlap
		if len(ids) == 0 && sealed {
			g.lose()
		}
		next := uint64(1)
		for _, id := range slices.Compact(ids) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if !l.found && id != next {
				g.lose()
				if !sealed {
					g.end()
				}
			}
			next = id + 1
			want, isListed := l.tables[id]
			if err := g.eachInTable(tablePath(part, id), want, isListed, wrong, func(e codec.Entry) error {
				if fits(e.Key) {
					return use(e)
				}
				return nil
			}); err != nil {
				return nil, err
			}
			if !sealed {
				g.end()
			}
		}
		g.end()
	}
	return g.lost, nil
}

// Range is a range of keys, with both ends. Without To it has no end.
type Range struct{ From, To []byte }

// Has reports whether a key is in the range.
func (r Range) Has(key []byte) bool {
	return bytes.Compare(r.From, key) <= 0 && (len(r.To) == 0 || bytes.Compare(key, r.To) <= 0)
}

// Meets reports whether keys with a prefix may be in the range.
func (r Range) Meets(prefix []byte) bool {
	return r.Has(prefix) || bytes.HasPrefix(r.From, prefix)
}

// Equal reports whether two ranges are the same.
func (r Range) Equal(o Range) bool { return bytes.Equal(r.From, o.From) && bytes.Equal(r.To, o.To) }

// gaps finds ranges of lost keys, from the key before a lost block to the one after it. It gets the keys of tables in order.
type gaps struct {
	lost []Range
	last []byte // the last key
	open bool   // something is lost after it
}

func (g *gaps) lose() { g.open = true }

func (g *gaps) key(key []byte) {
	if g.open {
		g.lost, g.open = append(g.lost, Range{bytes.Clone(g.last), bytes.Clone(key)}), false
	}
	g.last = append(g.last[:0], key...)
}

// end ends an order: the next key begins another one.
func (g *gaps) end() {
	if g.open {
		g.lost = append(g.lost, Range{From: g.last})
	}
	g.last, g.open = nil, false
}

// eachInTable is EachEntry for a table.
func (g *gaps) eachInTable(path string, want listed, isListed bool, wrong func(path string, err error), use func(codec.Entry) error) (failed error) {
	was := gaps{g.lost, bytes.Clone(g.last), g.open}
	var read contents
	damage := eachSoundBlock(path, func(block []byte) error {
		return eachInBlock(block, func(key []byte, v y.ValueStruct) {
			e := entryOf(key, v)
			read.join(contentsOf(&e))
			g.key(e.Key)
			if failed == nil && string(e.Key) != filler {
				failed = use(e)
			}
		})
	}, g.lose)
	switch {
	case failed != nil:
	case errors.Is(damage, fs.ErrNotExist): // its keys count as lost, and there is nothing to read
	case damage != nil:
		wrong(path, damage)
	case isListed && read != want.contents: // it is another table
		*g = was
		g.lose()
	}
	return failed
}

// eachSoundBlock calls use with the sound blocks of a table, and lose where others may be. It returns the damage.
func eachSoundBlock(path string, use func(block []byte) error, lose func()) (damage error) {
	f, err := os.Open(path)
	if err != nil {
		lose()
		return err
	}
	t := &tableFile{path: path, file: f}
	defer t.close()
	if damage = t.load(); damage != nil {
		b, err := os.ReadFile(path)
		if err == nil {
			eachFoundBlock(b, use, lose)
		}
		lose()
		return errors.Join(damage, err)
	}
	var buf buffer
	lost := 0
	for i := range t.blocks {
		b, err := t.readBlock(i, &buf)
		if err != nil && b != nil { // one wrong bit is corrected
			if data, sum, ok := cutChecksum(b); ok && crc.CorrectBit(data, sum) {
				damage, err = errors.Join(damage, err), nil
			}
		}
		if err == nil {
			err = use(b)
		}
		if err != nil {
			damage, lost = err, lost+1
			lose()
		}
	}
	if damage != nil {
		return fmt.Errorf("%d of its %d blocks cannot be read: %w", lost, t.blocks, damage)
	}
	return nil
}

// eachFoundBlock looks for sound blocks where the index of a table is damaged. Where b looks like the end of a block, and
// the checksum is right from one of the ends before it on, there is one. It calls lose where one does not follow the last.
func eachFoundBlock(b []byte, use func(block []byte) error, lose func()) {
	starts, found := []int{0}, 0
	for end := 4; end <= len(b); end++ {
		size := int(binary.BigEndian.Uint32(b[end-4:]))
		if size < 2 || size > 6 || end-4-size < 0 || b[end-4-size] != 2<<3 {
			continue
		}
		data, sum, ok := cutChecksum(b[:end])
		if !ok {
			continue
		}
		for _, start := range starts[max(0, len(starts)-8):] {
			if start >= len(data) || crc32.Checksum(data[start:], castagnoli) != sum {
				continue
			}
			if start != found {
				lose()
			}
			if use(b[start:end]) == nil {
				starts, found = starts[:0], end
				break
			}
		}
		starts = append(starts, end)
	}
}

// Rebuild replaces the content of the database. write makes a new database in another directory, with one part, and closes
// it. Then Rebuild calls before, and takes that part. Reads that have begun go on with the old tables; these are removed
// when the reads end. A kill leaves the old data or the new.
func (d *DB) Rebuild(write func(dir string) error, before func() error) error {
	return rebuild(d.dir, write, before, d.adopt)
}

// Rebuild is DB.Rebuild for the database in dir that cannot be opened.
func Rebuild(dir string, log *slog.Logger, write func(dir string) error, before func() error) (err error) {
	d, err := lock(dir, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.unlock()) }()
	return rebuild(dir, write, before, func(by string) error {
		l, part, err := onlyPart(by)
		if err == nil {
			_, err = nameDir(dir, l, part)
		}
		return err // the next Open removes the others
	})
}

// rebuilt is added to the name of a directory for the directory that is to replace it. After a kill, Open removes the latter.
const rebuilt = ".part"

func rebuild(dir string, write func(dir string) error, before func() error, adopt func(dir string) error) error {
	by := dir + rebuilt
	err := os.RemoveAll(by)
	if err == nil {
		err = write(by)
	}
	if err == nil {
		err = before()
	}
	if err == nil {
		err = adopt(by)
	}
	if err == nil {
		err = os.RemoveAll(by)
	}
	return err
}

// adopt replaces the parts by that of the database in another directory.
func (d *DB) adopt(by string) error {
	d.compacting.Lock()
	defer d.compacting.Unlock()
	d.writing.Lock()
	defer d.writing.Unlock()
	l, part, err := onlyPart(by)
	if err != nil {
		return err
	}
	was := d.parts
	l.version = max(l.version, d.last)
	if err := d.addPart(l, part); err != nil {
		return err
	}
	d.replace(was, nil)
	d.last = max(d.last, l.version, d.current().newestVersion())
	d.memory = memTable{}
	d.damage.Store(nil)
	return nil
}

// onlyPart returns the directory of the only part of a database, with its list.
func onlyPart(dir string) (l list, part string, err error) {
	counts, _, err := findParts(dir)
	if err == nil && len(counts) != 1 {
		err = fmt.Errorf("%s has %d parts instead of one", dir, len(counts))
	}
	if err != nil {
		return l, "", err
	}
	part = filepath.Join(dir, counts[0])
	l, err = readList(part)
	return l, part, err
}
