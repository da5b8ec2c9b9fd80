package local

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// readAhead brings parts of a mapped file into the page cache that are about to be read. Where they are not in it, each
// page is waited for when it is touched, one after the other: a hundred neighbouring chunks are thirty such waits, of
// a tenth of a millisecond each, and several times that beside a full load. The system does not read value logs ahead by
// itself (stopReadAhead).
type readAhead struct{ from, to uintptr } // the addresses that were asked for last

// aheadSpan is how much is asked for on either side, in bytes: about what the largest commit writes, whose chunks Badger
// puts into the log in any order.
const aheadSpan = 128 << 10

// around asks for what lies within aheadSpan of b, unless that was asked for before.
func (a *readAhead) around(b []byte) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	if a.from <= at && at < a.to {
		return
	}
	page := uintptr(unix.Getpagesize())
	a.from, a.to = (at-aheadSpan)&^(page-1), at+aheadSpan
	// An error changes nothing but the speed. Badger hands out small values as copies in memory: there the advice does nothing.
	// Near an end of the file it reaches what else is mapped there, or nothing.
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, a.from, a.to-a.from, unix.MADV_WILLNEED)
}
