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

// list is what the file "tables" of a part has: the version of the last commit, the older parts ("older 3" is s3, "older g4" is g4), and a
// line for each table, with its number,
// its size, the number of its entries, and the sum of their hashes, and the checksum of its index. The file is sealed (codec.Seal) with its name as the key. The line
// "closed" says that the last stop was clean.
type list struct {
	version uint64   // tables may not have it any more: versions must not come twice
	older   []string // the parts before this one that count, the oldest first; of a sealed one, those when it was made
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
	for _, name := range l.older {
		b = fmt.Appendf(b, "older %s\n", strings.TrimPrefix(name, "s"))
	}
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
		if older, ok := strings.CutPrefix(line, "older "); ok {
			older = strings.TrimSuffix(older, "\n")
			if _, err := strconv.Atoi(older); err == nil {
				older = "s" + older
			}
			l.older = append(l.older, older)
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

// checkFiles checks the files of a part before Badger opens them: Badger would delete tables that MANIFEST does not list, and
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
			closeTables(slices.Collect(maps.Values(tables)))
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
			c, err := t.readAll(atOnce, nil)
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

func closeTables[S ~[]*tableFile](tables S) {
	for _, t := range tables {
		t.close()
	}
}

// removeOthers removes the files of a part that Badger creates again. The values are in the tables, and what is only in
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

// A part is a directory: gN or sN (badgerdb.go), or the database's own one, ".", which was the only one of earlier versions. The last of the
// gN counts, and the older parts that its list names.

const newSuffix = ".new"

// numberOf returns the number of a part; false when the name is not that of a part. That of "." is 0.
func numberOf(name string) (n int, ok bool) {
	if name == "." {
		return 0, true
	}
	n, err := strconv.Atoi(name[1:])
	return n, err == nil && n > 0 && (name[0] == 'g' || name[0] == 's')
}

func isSealed(name string) bool { return name[0] == 's' }

// findParts returns the names of the parts that count, the oldest first, and of all others. With an error, they are those that may count.
func findParts(dir string) (counts, others []string, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	var last, sealed, all []string
	for _, f := range files {
		name := f.Name()
		_, isTable := tableID(name)
		switch _, isPart := numberOf(name); {
		case isPart && f.IsDir() && isSealed(name):
			sealed = append(sealed, name)
		case isPart && f.IsDir():
			last = append(last, name)
		case name[0] == 'g' && strings.HasSuffix(name, newSuffix):
			all = append(all, name)
		case (isTable || name == badger.ManifestFilename || name == listName) && !slices.Contains(last, "."):
			last = append(last, ".")
		}
	}
	for _, names := range [][]string{last, sealed} {
		slices.SortFunc(names, func(a, b string) int {
			x, _ := numberOf(a)
			y, _ := numberOf(b)
			return x - y
		})
	}
	if len(last) == 0 {
		if len(sealed) > 0 {
			return sealed, nil, damaged(dir, "the last part is missing")
		}
		return nil, all, nil
	}
	if counts, err = countingParts(dir, last, sealed); err != nil {
		return counts, nil, err
	}
	all = slices.Concat(all, last, sealed)
	for _, name := range counts {
		if !slices.Contains(all, name) {
			return counts, nil, damaged(filepath.Join(dir, name), "it is missing")
		}
	}
	return counts, slices.DeleteFunc(all, func(name string) bool { return slices.Contains(counts, name) }), nil
}

// countingParts returns the parts that count, as the list of the last one says. When that is damaged, the sealed part of the same number says
// which older ones count. When there is none, no compaction has ended since the last part was made: the one before it says the rest.
func countingParts(dir string, last, sealed []string) (counts []string, err error) {
	newest := last[len(last)-1]
	number, _ := numberOf(newest)
	sealed = slices.DeleteFunc(slices.Clone(sealed), func(name string) bool { n, _ := numberOf(name); return n > number })
	all := slices.Concat(sealed, last)
	path := filepath.Join(dir, newest, listName)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && len(all) > 1 {
		return all, damaged(path, "it is missing")
	}
	l, err := readList(filepath.Join(dir, newest))
	if err != nil {
		return all, err
	}
	if l.tables != nil {
		return append(l.older, newest), nil
	}
	if same := fmt.Sprint("s", number); slices.Contains(sealed, same) {
		if l, err = readList(filepath.Join(dir, same)); err != nil || l.tables != nil {
			return append(l.older, same, newest), err
		}
	}
	if len(last) == 1 {
		return all, nil
	}
	counts, err = countingParts(dir, last[:len(last)-1], sealed)
	return append(counts, newest), err
}

// removePart removes a part of the database in dir.
func removePart(dir, name string) error {
	if name != "." {
		return errors.Join(os.RemoveAll(filepath.Join(dir, name)), durable.SyncPath(dir))
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
