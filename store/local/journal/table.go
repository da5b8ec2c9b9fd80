package journal

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"
	"github.com/dgraph-io/ristretto/v2/z"

	"mtagd/store/local/codec"
)

// readTable checks all checksums of one of Badger's table files, without opening the database, and calls use with each entry:
// its key with the version, and its value. Both are valid until use returns. When a block is damaged, use still gets the
// entries of the blocks before the first damaged one and behind the last, and readTable returns an error. A nil use only
// checks.
func readTable(path string, use func(key []byte, v y.ValueStruct)) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	var file *z.MmapFile
	defer func() {
		if p := recover(); p != nil { // Badger panics on some kinds of damage
			err = fmt.Errorf("%w: %.200v", codec.ErrCorrupt, p)
		}
		if file != nil {
			err = errors.Join(err, file.Close(-1))
		}
	}()
	if file, err = z.OpenMmapFile(path, os.O_RDONLY, 0); err != nil {
		file = nil
		return err
	}
	t, err := table.OpenTable(file, table.Options{ReadOnly: true, ChkMode: options.OnBlockRead})
	if err != nil {
		if !errors.Is(err, os.ErrClosed) {
			file = nil // OpenTable has closed it, or it stays mapped
		}
		return fmt.Errorf("%w: %w", codec.ErrCorrupt, err)
	}
	t.IncrRef() // one more than is released: Badger deletes the file of a table without references
	if err = t.VerifyChecksum(); err != nil {
		err = fmt.Errorf("%w: %w", codec.ErrCorrupt, err)
	}
	if use == nil {
		return err
	}
	read := uint32(0)
	for _, direction := range []int{0, table.REVERSED} {
		func() {
			defer func() { _ = recover() }() // VerifyChecksum has reported the damage
			it := t.NewIterator(direction | table.NOCACHE)
			defer it.Close()
			for it.Rewind(); it.Valid(); it.Next() {
				use(it.Key(), it.Value())
				read++
			}
		}()
		if read >= t.KeyCount() {
			break
		}
	}
	return err
}

// tablePath returns the path of a table.
func tablePath(dir string, id uint64) string { return filepath.Join(dir, table.IDToFilename(id)) }
