package faultfs

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

const pageSize = 4096

// undo remembers how to take back what was not synced. It is called before each change.
type undo struct {
	trash string // has the removed files whose removal is not synced, by a number
	count int    // of files that were ever in trash

	changes         // until the power is cut
	wasCut  bool    // then later changes are remembered apart:
	after   changes // all of them are taken back
}

// changes are what was not synced.
type changes struct {
	inodes  map[uint64]*inodeUndo // by the file's inode
	entries []entryUndo           // of directories, in their order
}

// inodeUndo is a file as of its last sync: its size, and those pages that have changed since.
type inodeUndo struct {
	size  int64
	pages map[int64][]byte // by their offset
}

// entryUndo takes back one change of a directory.
type entryUndo struct {
	path string // the name that was created, removed or replaced
	from string // the former name of a file that was renamed, else ""
	kept string // where the removed or replaced file is in trash, else ""
}

// now returns where changes are remembered.
func (u *undo) now() *changes {
	if u.wasCut {
		return &u.after
	}
	return &u.changes
}

// base calls change with the undo of a file.
func (u *undo) base(path string, change func(*inodeUndo) error) error {
	var s syscall.Stat_t
	if err := syscall.Lstat(path, &s); errors.Is(err, syscall.ENOENT) {
		return nil // an open file that was removed: its content no longer counts
	} else if err != nil {
		return err
	}
	c := u.now()
	if c.inodes == nil {
		c.inodes = map[uint64]*inodeUndo{}
	}
	if c.inodes[s.Ino] == nil {
		c.inodes[s.Ino] = &inodeUndo{size: s.Size, pages: map[int64][]byte{}}
	}
	return change(c.inodes[s.Ino])
}

// write remembers the pages that a write changes.
func (u *undo) write(path string, off, size int64) error {
	return u.base(path, func(i *inodeUndo) error { return i.keep(path, off, min(off+size, i.size)) })
}

// resize remembers the pages that a change of the size cuts off.
func (u *undo) resize(path string, size int64) error {
	return u.base(path, func(i *inodeUndo) error { return i.keep(path, size, i.size) })
}

// keep remembers the pages from off to end as they are, unless it already has them.
func (i *inodeUndo) keep(path string, off, end int64) error {
	if off >= end {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for at := off &^ (pageSize - 1); at < end; at += pageSize {
		if _, found := i.pages[at]; found {
			continue
		}
		if data, err := f.Seek(at, 3); err != nil || data >= end { // SEEK_DATA: the rest is a hole. Of a large one only the beginning is remembered:
			end = min(end, at+1<<20) // nothing is written to the rest
		}
		page := make([]byte, pageSize)
		if n, err := f.ReadAt(page, at); n == 0 && err != nil {
			return nil // behind the end
		}
		i.pages[at] = page
	}
	return nil
}

func (u *undo) addEntry(e entryUndo) { u.now().entries = append(u.now().entries, e) }

func (u *undo) created(path string) { u.addEntry(entryUndo{path: path}) }

// remove removes a file.
func (u *undo) remove(path string) error {
	kept := u.newKept()
	if err := os.Rename(path, kept); err != nil {
		return err
	}
	u.addEntry(entryUndo{path: path, kept: kept})
	return nil
}

// rename renames a file.
func (u *undo) rename(from, to string) error {
	kept := ""
	if _, err := os.Lstat(to); err == nil {
		kept = u.newKept()
		if err := os.Rename(to, kept); err != nil {
			return err
		}
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	u.addEntry(entryUndo{path: to, from: from, kept: kept})
	return nil
}

func (u *undo) newKept() string {
	u.count++
	path := filepath.Join(u.trash, strconv.Itoa(u.count))
	_ = os.RemoveAll(path) // of before the last power cut
	return path
}

// synced forgets how to take back the changes of a file or directory.
func (u *undo) synced(path string) {
	var s syscall.Stat_t
	if u.wasCut || syscall.Lstat(path, &s) != nil {
		return
	}
	delete(u.inodes, s.Ino)
	var removed []string // from later entries: what was in such a directory does not come back
	var left []entryUndo
	for _, e := range slices.Backward(u.entries) {
		if !forgets(e, path) {
			if !slices.ContainsFunc(removed, func(dir string) bool { return strings.HasPrefix(e.path, dir+"/") }) {
				left = append(left, e)
			}
			continue
		}
		if e.kept != "" {
			removed = append(removed, e.path)
			_ = os.RemoveAll(e.kept)
		}
	}
	slices.Reverse(left)
	u.entries = left
}

// forgets reports whether a sync of a file or directory makes a change durable.
func forgets(e entryUndo, path string) bool {
	isFile := e.path == path && (e.kept == "" || e.from != "")
	isAbove := e.kept == "" && e.from == "" && strings.HasPrefix(path, e.path+"/")
	return filepath.Dir(e.path) == path || isFile || isAbove
}

// takeBack makes the directory what it is after the power cut.
func (u *undo) takeBack(base string, what Survival) error {
	random := rand.New(rand.NewPCG(what.Seed, 0))
	for _, e := range slices.Backward(u.after.entries) {
		if err := e.takeBack(); err != nil {
			return err
		}
	}
	surviving := 0
	for surviving < len(u.entries) && random.Float64() < what.Keep {
		surviving++
	}
	for _, e := range slices.Backward(u.entries[surviving:]) {
		if err := e.takeBack(); err != nil {
			return err
		}
	}
	return filepath.WalkDir(base, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		var s syscall.Stat_t
		if err := syscall.Lstat(path, &s); err != nil {
			return err
		}
		if i := u.after.inodes[s.Ino]; i != nil {
			if err := i.takeBack(path, func() bool { return false }, nil); err != nil {
				return err
			}
		}
		if i := u.inodes[s.Ino]; i != nil {
			return i.takeBack(path, func() bool { return random.Float64() < what.Keep }, random)
		}
		return nil
	})
}

func (e entryUndo) takeBack() error {
	if e.from != "" {
		if err := os.Rename(e.path, e.from); err != nil {
			return err
		}
	} else if e.kept == "" {
		if err := os.RemoveAll(e.path); err != nil {
			return err
		}
	}
	if e.kept != "" {
		return os.Rename(e.kept, e.path)
	}
	return nil
}

// takeBack writes those pages back that do not survive. Of a page that survives, a part may survive.
func (i *inodeUndo) takeBack(path string, survives func() bool, random *rand.Rand) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	size := i.size
	if survives() {
		size = info.Size()
	}
	for _, at := range slices.Sorted(maps.Keys(i.pages)) {
		if at >= size {
			break
		}
		page := i.pages[at]
		from := 0
		if survives() {
			if random.IntN(4) > 0 {
				continue
			}
			from = 512 * random.IntN(pageSize/512) // the sectors before survive
		}
		if _, err := f.WriteAt(page[from:], at+int64(from)); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return f.Truncate(size)
}
