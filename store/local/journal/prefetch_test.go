package journal

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"mtagd/store"
)

func TestPrefetchFollowsNeighbours(t *testing.T) {
	b := make([]byte, 1<<20)
	for _, c := range []struct {
		reads string
		at    []int
		want  int // number of prefetches
	}{
		{"neighbours", []int{0, 4096, 8192, 12288}, 1},
		{"neighbours, backwards", []int{12288, 8192, 4096, 0}, 1},
		{"scattered", []int{0, 200_000, 400_000, 600_000, 800_000, 200_000}, 0},
		{"a long way in small steps", []int{0, 100_000, 200_000, 300_000, 400_000, 500_000, 600_000}, 3},
	} {
		var p, before prefetcher
		prefetches := 0
		for _, at := range c.at {
			p.note(b[at:])
			if p.from != before.from {
				prefetches++
			}
			before = p
		}
		if prefetches != c.want {
			t.Errorf("%s: %d prefetches, want %d", c.reads, prefetches, c.want)
		}
	}
}

// Each event has a commit of its own, and none is in the page cache. Reading every fourth event must load nearly all
// pages of the value log.
func TestReadingNeighboursPrefetches(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	m := store.NewMerchantID()
	random := rand.NewChaCha8([32]byte{})
	raw := make([]byte, 3000)
	const events, every = 400, 4
	for i := range events {
		if _, err := random.Read(raw); err != nil {
			t.Fatal(err)
		}
		if err := j.Record(ctx, []store.Mark{newMark(m, "Name", i, raw)}); err != nil {
			t.Fatal(err)
		}
	}
	var wanted []Wanted
	for i, e := range j.handed {
		if i%every == 0 {
			wanted = append(wanted, Wanted{e.Position, len(wanted)})
		}
	}
	closeJournal(t, j)
	j = open(t, dir) // reads the beginning of each log
	defer closeJournal(t, j)
	logs, err := filepath.Glob(filepath.Join(dir, "*.vlog"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no value logs, %v", err)
	}
	b := coldFile(t, logs[0])
	if len(b) < events*len(raw) {
		t.Fatalf("the first value log has %d bytes, too few for all events", len(b))
	}
	read := 0
	if err := j.Read(ctx, wanted, func(int, Event) { read++ }); err != nil || read != events/every {
		t.Fatalf("%d events were read, %v; want %d", read, err, events/every)
	}
	pages := len(b) / unix.Getpagesize()
	for deadline := time.Now().Add(10 * time.Second); resident(t, b) < pages*9/10; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d pages are in memory after every fourth event was read, want nearly all", resident(t, b), pages)
		}
	}
}

// coldFile drops a file from the page cache, and maps it. It skips the test when the file stays in the cache.
func coldFile(t *testing.T, path string) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	if n := resident(t, b); n > 32 { // when another process has mapped it
		t.Skipf("%d pages of %s stay in the page cache", n, path)
	}
	return b
}

// resident counts the pages of b that are in memory. b begins at a page boundary.
func resident(t *testing.T, b []byte) (n int) {
	t.Helper()
	pages := make([]byte, (len(b)+unix.Getpagesize()-1)/unix.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE,
		uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
	for _, p := range pages {
		n += int(p & 1)
	}
	return n
}
