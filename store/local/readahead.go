package local

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// readAhead brings parts of a mapped file into the page cache that are about to be read. Where they are not in it, each
// page is waited for when it is touched, one after the other: a hundred neighbouring chunks are thirty such waits, of
// a tenth of a millisecond each, and several times that beside a full load. The system does not read value logs ahead by
// itself (stopReadAhead).
type readAhead struct {
	last     uintptr // where the read before was
	from, to uintptr // what was asked for last
}

// aheadSpan is how much is asked for on either side, in bytes: about what the largest commit writes, whose chunks Badger puts
// into the log in any order. Linux reads as much in one go where it is not told to read more.
const aheadSpan = 128 << 10

// reading is told what is being read. It asks for what lies within aheadSpan of that, once, where the read before did too: more
// reads will.
func (a *readAhead) reading(b []byte) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	near := max(at, a.last)-min(at, a.last) <= aheadSpan
	a.last = at
	if !near || a.from <= at && at < a.to {
		return
	}
	at &^= uintptr(unix.Getpagesize() - 1)
	a.from, a.to = at-aheadSpan, at+aheadSpan
	// An error changes nothing but the speed. Badger hands out small values as copies in memory: there the advice does nothing.
	// Near an end of the file it reaches what else is mapped there, or nothing. What is read is kept by single pages, so
	// that those behind the end of a log are not written as a part of larger ones later, which stopReadAhead is about.
	for _, from := range []uintptr{at, a.from} {
		_, _, _ = unix.Syscall(unix.SYS_MADVISE, from, aheadSpan, unix.MADV_WILLNEED)
	}
}
