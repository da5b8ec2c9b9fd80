package journal

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// prefetcher loads parts of a mapped file into the page cache that will be read soon. Without it each page that is not
// cached is a page fault of its own: a hundred neighbouring chunks are thirty faults of 0.1 ms each, and several times
// that beside a full load. The system does not read value logs ahead (disableReadahead).
type prefetcher struct {
	last     uintptr // address of the previous read
	from, to uintptr // what was prefetched last
}

// prefetchSpan is how much is prefetched on either side of a read, in bytes. It is about what the largest commit
// writes, and Badger puts the chunks of one commit into the log in any order. Linux reads as much at once where it is
// not told to read more.
const prefetchSpan = 128 << 10

// note notes each read, and prefetches around it when the previous one was near: then further reads will be near too.
func (p *prefetcher) note(b []byte) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	near := max(at, p.last)-min(at, p.last) <= prefetchSpan
	p.last = at
	if !near || p.from <= at && at < p.to {
		return
	}
	at &^= uintptr(unix.Getpagesize() - 1)
	p.from, p.to = at-prefetchSpan, at+prefetchSpan
	// Errors are ignored: they only cost speed. Small values are copies in memory, where the advice has no effect. Near
	// an end of the file the span covers other mappings, or nothing. The prefetched pages stay single pages in the page
	// cache. So the pages behind the end of a log do not become parts of larger ones, which disableReadahead avoids.
	for _, from := range []uintptr{at, p.from} {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, prefetchSpan, unix.MADV_WILLNEED)
	}
}
