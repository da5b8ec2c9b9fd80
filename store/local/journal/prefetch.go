package journal

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// prefetcher loads those parts of a value log into the page cache that will probably be read soon. Without it, each page
// that is not cached costs a page fault, as value logs have no readahead (disableReadahead). A hundred neighbouring
// chunks cost thirty faults of 0.1 ms each, and several times that under full load.
type prefetcher struct {
	last     uintptr // address of the previous read
	from, to uintptr // what was prefetched last
}

// prefetchSpan is how many bytes are prefetched before and after the page of a read. It is about what the largest commit
// writes: Badger writes the chunks of one commit into the log in any order. It is also the default readahead of Linux.
const prefetchSpan = 128 << 10

// note notes each read, and prefetches around it when the previous one was near: then the next ones probably are too.
func (p *prefetcher) note(b []byte) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	near := max(at, p.last)-min(at, p.last) <= prefetchSpan
	p.last = at
	if !near || p.from <= at && at < p.to {
		return
	}
	at &^= uintptr(unix.Getpagesize() - 1)
	p.from, p.to = at-prefetchSpan, at+prefetchSpan
	// Errors are ignored: they cost only speed. For a small value, which Badger has copied to memory, the advice has no
	// effect. Near an end of the file the span covers other mappings, or nothing. Prefetched pages stay single pages in
	// the page cache; they do not form the large folios that disableReadahead avoids.
	for _, from := range []uintptr{at, p.from} {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, prefetchSpan, unix.MADV_WILLNEED)
	}
}
