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

// list is what the file "tables" of a part has: the version of the last commit, the older parts, and a line for each table, with its number,
// its size, the number of its entries, and the sum of their hashes, and the checksum of its index. The file is sealed (codec.Seal) with its name as the key. The line
// "closed" says that the last stop was clean.
type list struct {
	version uint64 // tables may not have it any more: versions must not come twice
	older   []int  // the sealed parts before this one that counted when it was made, the oldest first
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
	for _, n := range l.older {
		b = fmt.Appendf(b, "older %d\n", n)
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
		var older int
		if _, err := fmt.Sscanf(line, "older %d\n", &older); err == nil {
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

func closeTables(tables map[uint64]*tableFile) {
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

// A part is a directory of Badger. The last one is gN, or the database's own directory, which has the number 0: earlier versions had only
// that. The one with the greatest number counts, and the sealed ones, sN, that its list names. Compact and Merge write sN, and then gN.new,
// which they rename when it is complete.

const newSuffix = ".new"

func partDir(dir string, n int) string {
	if n == 0 {
		return dir
	}
	return filepath.Join(dir, "g"+strconv.Itoa(n))
}

func sealedDir(dir string, n int) string { return filepath.Join(dir, "s"+strconv.Itoa(n)) }

// findParts returns the numbers of the parts that count, the oldest first, and the directories of all others. When the list of the last
// part is damaged, that of the sealed part of the same number says which older ones count. With an error, the numbers are those that may
// count.
func findParts(dir string) (counts []int, others []string, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	last, sealed := []int{}, []int{}
	for _, f := range files {
		name := f.Name()
		n, err := strconv.Atoi(name[1:])
		switch {
		case name[0] == 'g' && err == nil && n > 0 && f.IsDir():
			last = append(last, n)
		case name[0] == 's' && err == nil && n > 0 && f.IsDir():
			sealed = append(sealed, n)
		case name[0] == 'g' && strings.HasSuffix(name, newSuffix):
			others = append(others, filepath.Join(dir, name))
		}
		if _, ok := tableID(name); (ok || name == badger.ManifestFilename || name == listName) && !slices.Contains(last, 0) {
			last = append(last, 0)
		}
	}
	slices.Sort(last)
	slices.Sort(sealed)
	if len(last) == 0 {
		if len(sealed) > 0 {
			return append(sealed, sealed[len(sealed)-1]+1), nil, damaged(dir, "the last part is missing")
		}
		return nil, others, nil
	}
	newest := last[len(last)-1]
	counts, err = countingParts(dir, newest, sealed)
	if err != nil {
		return counts, nil, err
	}
	last = last[:len(last)-1]
	for _, n := range counts[:max(0, len(counts)-1)] {
		if !slices.Contains(sealed, n) {
			return counts, others, damaged(sealedDir(dir, n), "it is missing")
		}
	}
	for _, n := range last {
		others = append(others, partDir(dir, n))
	}
	for _, n := range sealed {
		if !slices.Contains(counts[:max(0, len(counts)-1)], n) {
			others = append(others, sealedDir(dir, n))
		}
	}
	return counts, others, nil
}

// countingParts returns the numbers of the parts that count, as the last one's list says.
func countingParts(dir string, newest int, sealed []int) (counts []int, err error) {
	upTo, _ := slices.BinarySearch(sealed, newest+1) // a later one is of a compaction that was cut off
	all := append(slices.Clone(sealed[:upTo]), newest)
	path := filepath.Join(partDir(dir, newest), listName)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) && upTo > 0 {
		return all, damaged(path, "it is missing")
	}
	l, err := readList(partDir(dir, newest))
	if err != nil {
		return all, err
	}
	if l.tables != nil {
		return append(l.older, newest), nil
	}
	if !slices.Contains(sealed, newest) {
		return all, nil
	}
	l, err = readList(sealedDir(dir, newest))
	if err != nil || l.tables == nil {
		return all, err
	}
	return append(l.older, newest, newest), nil
}

// removePart removes a part of the database in dir.
func removePart(dir, part string) error {
	if part != dir {
		return errors.Join(os.RemoveAll(part), durable.SyncPath(dir))
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
