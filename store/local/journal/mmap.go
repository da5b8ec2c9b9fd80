package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	_ "unsafe" // for go:linkname

	"golang.org/x/sys/unix"
)

// Badger creates sparse files and writes to them through memory maps. On a full disk such a write is a SIGBUS, which ends
// the process. So an allocator allocates the blocks of each file when Badger maps it, before anything is written to it.
//
// Badger has no hook for that, but it maps files with unix.Mmap, and that calls a function variable of its package.
func init() {
	mmap := mapper.mmap
	mapper.mmap = func(addr, length uintptr, prot, flags, fd int, offset int64) (uintptr, error) {
		if prot&unix.PROT_WRITE != 0 && flags&unix.MAP_SHARED != 0 {
			if err := allocateMapped(fd, int64(length)); err != nil {
				return 0, err
			}
		}
		return mmap(addr, length, prot, flags, fd, offset)
	}
}

// mapper is the variable behind unix.Mmap. The fields are those of mmapper in golang.org/x/sys/unix.
//
//go:linkname mapper golang.org/x/sys/unix.mapper
var mapper *struct {
	sync.Mutex
	active map[*byte][]byte
	mmap   func(addr, length uintptr, prot, flags, fd int, offset int64) (uintptr, error)
	munmap func(addr uintptr, length uintptr) error
}

// allocateMapped allocates the blocks of a file that is about to be mapped, if it is in the directory of a journal.
func allocateMapped(fd int, length int64) error {
	path, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return nil // not a file, or no /proc
	}
	if a, found := allocators.Load(filepath.Dir(path)); found {
		return a.(*allocator).allocate(fd, path, length)
	}
	return nil
}
