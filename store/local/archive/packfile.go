package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"mtagd/store/local/space"
)

// packBytes is the size at which a pack file is full. Space comes back file by file.
const packBytes = 64 << 20

// packFiles are the pack files of an archive. They stay open once they were read.
type packFiles struct {
	dir string

	// Held for reading while a block is looked up and read, and for writing while a file is removed: a reader never looks up
	// a block in one file and then misses that file.
	removing sync.RWMutex

	mu   sync.Mutex
	open map[uint32]*os.File
}

func newPackFiles(dir string) *packFiles { return &packFiles{dir: dir, open: map[uint32]*os.File{}} }

func (p *packFiles) path(id uint32) string { return filepath.Join(p.dir, fmt.Sprintf("%06d.pack", id)) }

// list returns the numbers of all files, sorted.
func (p *packFiles) list() (ids []uint32, err error) {
	files, err := os.ReadDir(p.dir)
	for _, f := range files {
		name, isPack := strings.CutSuffix(f.Name(), ".pack")
		if id, err := strconv.ParseUint(name, 10, 32); isPack && err == nil {
			ids = append(ids, uint32(id))
		}
	}
	slices.Sort(ids)
	return ids, err
}

// file returns a file that exists.
func (p *packFiles) file(id uint32) (*os.File, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.open[id]; f != nil {
		return f, nil
	}
	f, err := os.OpenFile(p.path(id), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrInvalid) {
		f, err = os.Open(p.path(id)) // to verify it
	}
	if err == nil {
		p.open[id] = f
	}
	return f, err
}

// create creates a file, also when a kill has left one of this number.
func (p *packFiles) create(id uint32) error {
	f, err := os.OpenFile(p.path(id), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.open[id]; old != nil {
		_ = old.Close() // it is the same file
	}
	p.open[id] = f
	return syncPath(p.dir)
}

// read reads a stored block into the memory of buf, if that is large enough.
func (p *packFiles) read(buf []byte, l location) ([]byte, error) {
	f, err := p.file(l.file)
	if err != nil {
		return nil, err
	}
	if int64(cap(buf)) < l.length {
		buf = make([]byte, l.length)
	}
	buf = buf[:l.length]
	_, err = f.ReadAt(buf, l.offset)
	return buf, err
}

// write writes at the end of a file.
func (p *packFiles) write(id uint32, end int64, b []byte) error {
	f, err := p.file(id)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, end)
	return err
}

// sync syncs a file.
func (p *packFiles) sync(id uint32) error {
	f, err := p.file(id)
	if err != nil {
		return err
	}
	return f.Sync()
}

// truncate cuts off what is behind the end of a file. A file that is shorter stays as it is.
func (p *packFiles) truncate(id uint32, end int64) error {
	info, err := os.Stat(p.path(id))
	if err != nil || info.Size() <= end {
		return err
	}
	return os.Truncate(p.path(id), end)
}

// remove removes a file. No block of it is in the directory any more.
func (p *packFiles) remove(id uint32) error {
	p.removing.Lock()
	p.mu.Lock()
	f := p.open[id]
	delete(p.open, id)
	p.mu.Unlock()
	p.removing.Unlock()
	var err error
	if f != nil {
		err = f.Close()
	}
	return errors.Join(err, os.Remove(p.path(id)), syncPath(p.dir))
}

func (p *packFiles) close() (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.open {
		err = errors.Join(err, f.Close())
	}
	return err
}

func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func isFull(err error) bool { return space.IsFull(err) }
