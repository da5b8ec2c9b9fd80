package local

import (
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func TestReadAhead(t *testing.T) {
	const size = 1 << 20
	b := coldFile(t, size)
	page := unix.Getpagesize()
	const at = size / 2
	loaded := func(offset int) bool { return resident(t, b[offset:offset+page]) }

	var ahead readAhead
	ahead.around(b[at:])
	for _, offset := range []int{at - aheadSpan, at, at + aheadSpan - page} {
		for deadline := time.Now().Add(10 * time.Second); !loaded(offset); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d bytes from what is being read, the file was not read ahead", offset-at)
			}
		}
	}
	for _, offset := range []int{0, size - page} {
		if loaded(offset) {
			t.Errorf("the file was read ahead %d bytes from what is being read", offset-at)
		}
	}
	before := ahead
	ahead.around(b[at+aheadSpan-page:])
	if ahead != before {
		t.Error("what was read ahead is read ahead again")
	}
	ahead.around(b[at+aheadSpan:])
	if ahead == before {
		t.Error("what lies behind was not read ahead")
	}
}

// coldFile maps a new file of which nothing is in memory.
func coldFile(t *testing.T, size int) []byte {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	if resident(t, b) {
		t.Skip("files in the temporary directory are always in memory")
	}
	return b
}

// resident reports whether any page of b is in memory; b begins at a page.
func resident(t *testing.T, b []byte) bool {
	t.Helper()
	pages := make([]byte, (len(b)+unix.Getpagesize()-1)/unix.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
	for _, p := range pages {
		if p&1 != 0 {
			return true
		}
	}
	return false
}
