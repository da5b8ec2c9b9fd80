package journal

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"mtagd/store/local/codec"
)

// Checking all blocks of all tables at a start takes about a second per GB. A restart soon after a clean stop does without:
// blocks are checked again whenever they are read, and the scrub reads all. A stop is clean when nothing has failed and no
// damaged block was read. So after damage, the next start checks all blocks, and corrects them.

// closedName is a file with a line for each table, its name and size, sealed with the name of the file as the key (codec.Seal).
const closedName = "closed"

// closedAge is how long a clean stop counts: a directory that was not used for longer may have been moved or copied.
const closedAge = 15 * time.Minute

// noteClosed notes a clean stop.
func noteClosed(dir string) error {
	tables, err := listTables(dir)
	if err != nil {
		return err
	}
	return ReplaceFile(filepath.Join(dir, closedName), codec.Seal([]byte(closedName), tables))
}

// wasClosed reports whether the last stop was clean and recent, and removes the note.
func wasClosed(dir string) (bool, error) {
	path := filepath.Join(dir, closedName)
	info, err := os.Stat(path)
	if os.IsNotExist(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	noted, err := os.ReadFile(path)
	if err != nil {
		return false, err
	}
	if err := os.Remove(path); err != nil {
		return false, err
	}
	tables, err := listTables(dir)
	if err != nil {
		return false, err
	}
	age := time.Since(info.ModTime())
	return bytes.Equal(noted, codec.Seal([]byte(closedName), tables)) && age >= 0 && age < closedAge, SyncPath(dir)
}

// listTables lists the tables of a directory in the order of their names.
func listTables(dir string) (list []byte, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".sst") {
			continue
		}
		var info fs.FileInfo
		if info, err = e.Info(); err != nil {
			return nil, err
		}
		list = fmt.Appendf(list, "%s %d\n", e.Name(), info.Size())
	}
	return list, nil
}

// maxTail is more than the index of a table takes.
const maxTail = 4 << 20

// hasSoundIndex reports whether the index of a table is sound. Badger relies on it when it opens the table.
func hasSoundIndex(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	tail := make([]byte, min(maxTail, info.Size()))
	if _, err := f.ReadAt(tail, info.Size()-int64(len(tail))); err != nil {
		return false, err
	}
	rest, sum, ok := cutChecksum(tail)
	if !ok || len(rest) < 4 {
		return false, nil
	}
	rest, size := rest[:len(rest)-4], binary.BigEndian.Uint32(rest[len(rest)-4:])
	return size > 0 && uint64(size) <= uint64(len(rest)) && crc32.Checksum(rest[len(rest)-int(size):], castagnoli) == sum, nil
}
