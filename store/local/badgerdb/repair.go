package badgerdb

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/dgraph-io/badger/v4/y"

	"mtagd/store/local/codec"
	"mtagd/store/local/crc"
)

// EachEntry reads the tables of a database one by one, without the lists, and calls use with the entries whose keys
// fit, in any order, older ones and deletions too. An entry is valid until use returns. EachEntry reads every sound block,
// and those with one wrong bit. It passes damage to wrong.
//
// A part never has a table whose entries were deleted from it. So nothing comes back that Compact has removed.
func EachEntry(ctx context.Context, dir string, fits func(key []byte) bool, use func(codec.Entry) error, wrong func(path string, err error)) error {
	counts, _, err := findParts(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	var missing *Damage
	if errors.As(err, &missing) {
		wrong(missing.Path, err)
	} else if err != nil {
		return err
	}
	var paths []string
	for _, name := range counts {
		tables, err := filepath.Glob(filepath.Join(dir, name, "*.sst"))
		if err != nil {
			return err
		}
		paths = append(paths, tables...)
	}
	for _, path := range paths {
		if err := ctx.Err(); err != nil {
			return err
		}
		var failed error
		damage := eachSoundBlock(path, func(block []byte) error {
			return eachInBlock(block, func(key []byte, v y.ValueStruct) {
				e := entryOf(key, v)
				if failed == nil && string(e.Key) != filler && fits(e.Key) {
					failed = use(e)
				}
			})
		})
		if failed != nil {
			return failed
		}
		if damage != nil {
			wrong(path, damage)
		}
	}
	return nil
}

// eachSoundBlock calls use with the sound blocks of a table, and returns the damage.
func eachSoundBlock(path string, use func(block []byte) error) (damage error) {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	t := &tableFile{path: path, file: f}
	defer t.close()
	if damage = t.load(); damage != nil {
		b, err := os.ReadFile(path)
		if err != nil {
			return errors.Join(damage, err)
		}
		eachFoundBlock(b, use)
		return damage
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
		}
	}
	if damage != nil {
		return fmt.Errorf("%d of its %d blocks cannot be read: %w", lost, t.blocks, damage)
	}
	return nil
}

// eachFoundBlock looks for sound blocks where the index of a table is damaged. Where b looks like the end of a block, and
// the checksum is right from one of the ends before it on, there is one.
func eachFoundBlock(b []byte, use func(block []byte) error) {
	starts := []int{0}
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
			if start < len(data) && crc32.Checksum(data[start:], castagnoli) == sum && use(b[start:end]) == nil {
				starts = starts[:0]
				break
			}
		}
		starts = append(starts, end)
	}
}
