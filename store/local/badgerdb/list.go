package badgerdb

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
)

// list is what the file "tables" of a generation has: the version of the last commit, and a line for each table, with its number,
// its size, the number of its entries, the sum of their hashes, and the checksum of its index. The file is sealed (codec.Seal) with its name as the key. The line "closed" says that
// the last stop was clean.
type list struct {
	version uint64 // tables may not have it any more: versions must not come twice
	tables  map[uint64]listed
	closed  bool
}

type listed struct {
	size int64
	contents
	index uint32 // checksum of the table's index; 0: an earlier version did not note it
}

const (
	listName  = "tables"
	closedAge = 15 * time.Minute // a directory that was not used for longer may have been moved or copied
)

func (l list) write(dir string) error {
	b := fmt.Appendf(nil, "version %d\n", l.version)
	for _, id := range slices.Sorted(maps.Keys(l.tables)) {
		t := l.tables[id]
		b = fmt.Appendf(b, "%d %d %d %x %x\n", id, t.size, t.entries, t.sum, t.index)
	}
	if l.closed {
		b = append(b, "closed\n"...)
	}
	return durable.ReplaceFile(filepath.Join(dir, listName), codec.Seal([]byte(listName), b))
}

// readList reads a list. When the file is missing or damaged, it returns one without tables.
func readList(dir string) (l list, err error) {
	path := filepath.Join(dir, listName)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return list{}, nil
	}
	if err != nil {
		return list{}, &Damage{path, err}
	}
	if b = codec.Unseal([]byte(listName), b); b == nil {
		return list{}, nil
	}
	l.tables = map[uint64]listed{}
	for line := range strings.Lines(string(b)) {
		if line == "closed\n" {
			info, err := os.Stat(path)
			l.closed = err == nil && time.Since(info.ModTime()).Abs() < closedAge
			continue
		}
		if _, err := fmt.Sscanf(line, "version %d\n", &l.version); err == nil {
			continue
		}
		var id uint64
		var t listed
		if n, _ := fmt.Sscanf(line, "%d %d %d %x %x\n", &id, &t.size, &t.entries, &t.sum, &t.index); n < 4 {
			return list{}, damaged(path, "a line")
		}
		l.tables[id] = t
	}
	return l, nil
}

// readManifest returns the tables that Badger's MANIFEST lists. When there is none, found is false.
func readManifest(dir string, log *badgerLog) (ids []uint64, found bool, err error) {
	path := filepath.Join(dir, badger.ManifestFilename)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, true, &Damage{path, err}
	}
	defer f.Close()
	m, _, err := badger.ReplayManifestFile(f, 0, badger.DefaultOptions(dir).WithLogger(log))
	if err != nil {
		return nil, true, damaged(path, "%v", err)
	}
	return slices.Sorted(maps.Keys(m.Tables)), true, nil
}

// checkFiles checks the files of a generation before Badger opens them: Badger would delete tables that MANIFEST does not list, and
// leave out those that it cannot read. It returns the tables. A table that MANIFEST lists, but not the list, is of a checkpoint
// that was cut off. It is read whole, as are all tables when there is no list: after a version that had none, or when it is
// damaged.
//
// After a failed write the page cache may have what the disk does not have, and would never write it. So what is not in the list
// yet is written again, unless readOnly.
func checkFiles(dir string, log *badgerLog, readOnly bool) (tables map[uint64]*tableFile, l list, isNew bool, err error) {
	if l, err = readList(dir); err != nil {
		return nil, l, false, err
	}
	isListed := l.tables != nil
	ids, found, err := readManifest(dir, log)
	if err != nil {
		return nil, l, false, err
	}
	manifest := filepath.Join(dir, badger.ManifestFilename)
	if !found {
		files, err := filepath.Glob(filepath.Join(dir, "*.sst"))
		if err != nil || len(files) > 0 || len(l.tables) > 0 {
			return nil, l, false, damaged(manifest, "it is missing")
		}
	}
	for id := range l.tables {
		if !slices.Contains(ids, id) {
			return nil, l, false, damaged(manifest, "it does not list %s", filepath.Base(tablePath(dir, id)))
		}
	}
	if l.tables == nil {
		l.tables = map[uint64]listed{}
	}
	tables = map[uint64]*tableFile{}
	defer func() {
		if err != nil {
			closeTables(tables)
		}
	}()
	for _, id := range ids {
		t, err := openTable(dir, id)
		if err != nil {
			return nil, l, false, err
		}
		tables[id] = t
		switch was, ok := l.tables[id]; {
		case !ok:
			c, err := t.readAll(atOnce)
			if err != nil {
				return nil, l, false, err
			}
			l.tables[id] = listed{t.size, c, t.sum}
			if !readOnly && isListed {
				if err := errors.Join(writeAgain(t.path), writeAgain(manifest)); err != nil {
					return nil, l, false, err
				}
			}
		case was.size != t.size:
			return nil, l, false, damaged(t.path, "it has %d bytes instead of %d", t.size, was.size)
		case was.index != 0 && was.index != t.sum:
			return nil, l, false, damaged(t.path, "it is another table")
		}
	}
	return tables, l, !isListed, nil
}

func atOnce() error { return nil }

func closeTables(tables map[uint64]*tableFile) {
	for _, t := range tables {
		t.close()
	}
}

// removeOthers removes the files of a generation that Badger creates again. The values are in the tables, and what is only in
// logs of memtables is of a checkpoint that was cut off. So damage of these files does not matter.
func removeOthers(dir string, keepLogs bool) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		switch ext := filepath.Ext(f.Name()); {
		case ext == ".vlog" || f.Name() == "DISCARD" || f.Name() == "KEYREGISTRY":
		case ext == ".mem" && !keepLogs:
		default:
			continue
		}
		if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
			return err
		}
	}
	return nil
}

// linkTables makes a directory of links to the tables, with a copy of MANIFEST.
func linkTables(dir string) (to string, err error) {
	if dir, err = filepath.Abs(dir); err != nil {
		return "", err
	}
	if to, err = os.MkdirTemp("", "mtagd-verify-"); err != nil {
		return "", err
	}
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	for _, path := range tables {
		err = errors.Join(err, os.Symlink(path, filepath.Join(to, filepath.Base(path))))
	}
	manifest, readErr := os.ReadFile(filepath.Join(dir, badger.ManifestFilename))
	return to, errors.Join(err, readErr, os.WriteFile(filepath.Join(to, badger.ManifestFilename), manifest, 0o600))
}

// A generation is a directory of Badger: gN, or the database's own directory, which is generation 0: earlier versions had
// only that. The one with the greatest number counts. Compact writes gN.new and renames it when it is complete.

const newSuffix = ".new"

func generationDir(dir string, n int) string {
	if n == 0 {
		return dir
	}
	return filepath.Join(dir, "g"+strconv.Itoa(n))
}

// generation returns the greatest generation; -1 when there is none.
func generation(dir string) (newest int, older []int, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return 0, nil, err
	}
	all := map[int]bool{}
	for _, f := range files {
		number, _ := strings.CutPrefix(f.Name(), "g")
		if n, err := strconv.Atoi(number); err == nil && n > 0 && f.IsDir() {
			all[n] = true
		}
		if _, ok := tableID(f.Name()); ok || f.Name() == badger.ManifestFilename || f.Name() == listName {
			all[0] = true
		}
	}
	if len(all) == 0 {
		return -1, nil, nil
	}
	older = slices.Sorted(maps.Keys(all))
	return older[len(older)-1], older[:len(older)-1], nil
}

// removeGeneration removes an older generation.
func removeGeneration(dir string, n int) error {
	if n > 0 {
		return errors.Join(os.RemoveAll(generationDir(dir, n)), durable.SyncPath(dir))
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if f.Type().IsRegular() {
			if err := os.Remove(filepath.Join(dir, f.Name())); err != nil {
				return err
			}
		}
	}
	return durable.SyncPath(dir)
}

// writeAgain replaces a file by a copy.
func writeAgain(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return durable.ReplaceFile(path, b)
}
