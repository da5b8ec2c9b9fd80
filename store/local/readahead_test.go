package local

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

func TestReadAheadFollowsNeighbours(t *testing.T) {
	b := make([]byte, 1<<20)
	for _, c := range []struct {
		reads string
		at    []int
		ahead int // how often something is asked for
	}{
		{"neighbours", []int{0, 4096, 8192, 12288}, 1},
		{"neighbours, backwards", []int{12288, 8192, 4096, 0}, 1},
		{"scattered", []int{0, 200_000, 400_000, 600_000, 800_000, 200_000}, 0},
		{"one end to the other", []int{0, 100_000, 200_000, 300_000, 400_000, 500_000, 600_000}, 3},
	} {
		var a, before readAhead
		asked := 0
		for _, at := range c.at {
			a.reading(b[at:])
			if a.from != before.from {
				asked++
			}
			before = a
		}
		if asked != c.ahead {
			t.Errorf("%s: read ahead %d times, want %d", c.reads, asked, c.ahead)
		}
	}
}

// Events came at intervals, each with a commit of its own, and nothing of them is in memory.
func TestAListingReadsAhead(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	random := rand.NewChaCha8([32]byte{})
	raw := make([]byte, 3000)
	const events, wantedOf = 400, 4
	for i := range events {
		if _, err := random.Read(raw); err != nil {
			t.Fatal(err)
		}
		mark := newMark(m, "Other", i, raw)
		if i%wantedOf == 0 {
			mark.Name = "Wanted"
		}
		if err := e.Record(ctx, []store.Mark{mark}); err != nil {
			t.Fatal(err)
		}
	}
	closeEngine(t, e)
	e = open(t, dir) // which reads the beginning of each log
	defer closeEngine(t, e)
	logs, err := filepath.Glob(filepath.Join(dir, "events", "*.vlog"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("no value logs, %v", err)
	}
	b := coldFile(t, logs[0])
	if len(b) < events*len(raw) {
		t.Fatalf("%d bytes of events in the first value log", len(b))
	}
	page, err := e.Events(ctx, store.Query{Merchant: m, Names: []string{"Wanted"}, Limit: 100})
	if err != nil || len(page.Events) != events/wantedOf {
		t.Fatalf("%d events, %v", len(page.Events), err)
	}
	pages := len(b) / unix.Getpagesize()
	for deadline := time.Now().Add(10 * time.Second); resident(t, b) < pages*9/10; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("of %d pages, of which %d were needed, %d were read", pages, events/wantedOf, resident(t, b))
		}
	}
}

// coldFile maps a file of which hardly anything is in memory then.
func coldFile(t *testing.T, path string) []byte {
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
	if n := resident(t, b); n > 32 { // where somebody else has mapped it
		t.Skipf("%d pages of a file in the temporary directory stay in memory", n)
	}
	return b
}

// resident counts the pages of b that are in memory; b begins at one.
func resident(t *testing.T, b []byte) (n int) {
	t.Helper()
	pages := make([]byte, (len(b)+unix.Getpagesize()-1)/unix.Getpagesize())
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&pages[0])))
	if errno != 0 {
		t.Fatal(errno)
	}
	for _, p := range pages {
		n += int(p & 1)
	}
	return n
}
