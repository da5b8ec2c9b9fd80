package local

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// readAhead brings parts of a mapped file into memory that are about to be read. Where the system does not keep the file
// there, each page is waited for when it is touched, one after the other: a hundred neighbouring chunks are thirty
// such waits, of a tenth of a millisecond each, and several times that beside a full load. The system does not read
// value logs ahead by itself (stopReadAhead).
type readAhead struct{ from, to uintptr } // the addresses that were asked for last

const (
	// aheadSpan is how much is read on either side, in bytes. Badger writes the chunks of one commit in any order, and
	// those of the largest take about as much.
	aheadSpan = 128 << 10

	// aheadReads is how many more reads have to be on one side for the span to be worth it.
	aheadReads = 4
)

// around is told what is being read from the file, and how far from there the read will be that comes after aheadReads
// others, in bytes.
func (a *readAhead) around(b []byte, distance uint64) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	if distance > aheadSpan || a.from <= at && at < a.to {
		return
	}
	page := uintptr(unix.Getpagesize())
	a.from, a.to = (at-aheadSpan)&^(page-1), at+aheadSpan
	// An error changes nothing but the speed. Where b is near an end of its file, the advice reaches what else is mapped
	// there, or nothing.
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, a.from, a.to-a.from, unix.MADV_WILLNEED)
}
