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

	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
)

// list is what the file "tables" of a part has: the greatest version that was put, the older parts ("older 3" is s3, "older
// g4" is g4), and a line for each table: its number, size, number of entries, sum of their hashes, and checksum of its
// index. It is sealed (codec.Seal) with its name as the key. Version 1.0.0 also wrote a line "closed".
type list struct {
	version uint64   // tables may not have it any more: versions must not come twice
	older   []string // the parts before this one that count, the oldest first. A sealed part has those from when it was made
	tables  map[uint64]listed
	found   bool // there is a sound file
}

type listed struct {
	size int64
	contents
	index uint32 // checksum of the table's index
}

const listName = "tables"

func (l list) write(dir string) error {
	b := fmt.Appendf(nil, "version %d\n", l.version)
	for _, name := range l.older {
		b = fmt.Appendf(b, "older %s\n", strings.TrimPrefix(name, "s"))
	}
	for _, id := range slices.Sorted(maps.Keys(l.tables)) {
		t := l.tables[id]
		b = fmt.Appendf(b, "%d %d %d %x %x\n", id, t.size, t.entries, t.sum, t.index)
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
	l.tables, l.found = map[uint64]listed{}, true
	for line := range strings.Lines(string(b)) {
		if line == "closed\n" {
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
		if n, _ := fmt.Sscanf(line, "%d %d %d %x %x\n", &id, &t.size, &t.entries, &t.sum, &t.index); n < 5 {
			return list{}, damaged(path, "a line")
		}
		l.tables[id] = t
	}
	return l, nil
}

// checkFiles opens the tables of a part. One that the list does not have was written just before a kill, and does not count.
// Without a list (it is damaged, or the part is new) all tables are read whole; no number may be missing.
func checkFiles(dir string) (tables []*tableFile, l list, err error) {
	if l, err = readList(dir); err != nil {
		return nil, l, err
	}
	ids := slices.Collect(maps.Keys(l.tables))
	if l.tables == nil {
		l.tables = map[uint64]listed{}
		if ids, err = unlisted(dir); err != nil {
			return nil, l, err
		}
	}
	defer func() {
		if err != nil {
			closeTables(tables)
		}
	}()
	for _, id := range ids {
		t, err := openTable(dir, id)
		if err != nil {
			return tables, l, err
		}
		tables = append(tables, t)
		switch was, ok := l.tables[id]; {
		case !ok:
			c, err := t.readAll(atOnce, nil)
			if err != nil {
				return tables, l, err
			}
			l.tables[id] = listed{t.size, c, t.sum}
		case was.size != t.size:
			return tables, l, damaged(t.path, "it has %d bytes instead of %d", t.size, was.size)
		case was.index != t.sum:
			return tables, l, damaged(t.path, "it is another table")
		}
	}
	return tables, l, nil
}

// unlisted returns the numbers of the tables of a part without a list.
func unlisted(dir string) (ids []uint64, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	for _, path := range files {
		if id, ok := tableID(filepath.Base(path)); ok {
			ids = append(ids, id)
		}
	}
	if len(ids) > 0 && slices.Max(ids) != uint64(len(ids)) {
		err = damaged(filepath.Join(dir, listName), "it cannot be read, and a table is missing")
	}
	return ids, err
}

func atOnce() error { return nil }

func closeTables(tables []*tableFile) {
	for _, t := range tables {
		t.close()
	}
}

// removeOthers removes tables that are not listed, and the files of version 1.0.0, in which Badger wrote the tables.
func (h *part) removeOthers() error {
	files, err := os.ReadDir(h.dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		id, isTable := tableID(f.Name())
		_, isListed := h.list.tables[id]
		switch ext := filepath.Ext(f.Name()); {
		case isTable && !isListed:
		case ext == ".vlog" || ext == ".mem" || ext == newSuffix && f.Type().IsRegular():
		case slices.Contains([]string{"MANIFEST", "DISCARD", "KEYREGISTRY"}, f.Name()):
		default:
			continue
		}
		if err := os.Remove(filepath.Join(h.dir, f.Name())); err != nil {
			return err
		}
	}
	return nil
}

// A part is a directory gN or sN (badgerdb.go). The last of the gN counts, and the older parts that its list names.

const newSuffix = ".new"

// numberOf returns the number of a part; false when the name is not that of a part.
func numberOf(name string) (n int, ok bool) {
	n, err := strconv.Atoi(name[1:])
	return n, err == nil && n > 0 && (name[0] == 'g' || name[0] == 's')
}

func isSealed(name string) bool { return name[0] == 's' }

// findParts returns the parts that count, the oldest first, and all others. With an error, counts has those that may count.
func findParts(dir string) (counts, others []string, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, err
	}
	var last, sealed, all []string
	for _, f := range files {
		name := f.Name()
		switch _, isPart := numberOf(name); {
		case isPart && f.IsDir() && isSealed(name):
			sealed = append(sealed, name)
		case isPart && f.IsDir():
			last = append(last, name)
		case name[0] == 'g' && strings.HasSuffix(name, newSuffix):
			all = append(all, name)
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

// countingParts returns the parts that count, as the list of the last one says. When that is damaged, the sealed part of its
// number says it. Without one, no compaction has ended since the last part was made: the one before it says the rest.
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
	return errors.Join(os.RemoveAll(filepath.Join(dir, name)), durable.SyncPath(dir))
}
