package journal

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store/local/codec"
)

// DamagedChunk is a chunk that cannot be read, and why.
type DamagedChunk struct {
	Seq uint64
	Err error
}

// IsMissing reports whether the journal does not have the chunk at all.
func (d DamagedChunk) IsMissing() bool { return errors.Is(d.Err, badger.ErrKeyNotFound) }

// MayHeal reports whether a later read may succeed: the disk has returned an error, and no wrong data.
func (d DamagedChunk) MayHeal() bool { return errors.Is(d.Err, errFault) }

// Reason says why the chunk cannot be read, for operators.
func (d DamagedChunk) Reason() string {
	if d.IsMissing() {
		return "is missing"
	}
	return fmt.Sprintf("cannot be read: %v", d.Err)
}

// DamagedChunks is the error of a Read that has met damaged chunks.
type DamagedChunks []DamagedChunk

func (d DamagedChunks) Error() string {
	return fmt.Sprintf("%d chunks of events are damaged, the first is %d, which %s", len(d), d[0].Seq, d[0].Reason())
}

// errFault is the error of a memory fault: a page of a mapped file cannot be read.
var errFault = errors.New("the disk returns an error, or the file was cut short")

// catchFault calls read, which reads what Badger has mapped, and turns its panics into errors.
func catchFault(read func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		if fault, ok := p.(interface{ Addr() uintptr }); ok && fault != nil {
			err = errFault
			return
		}
		err = fmt.Errorf("%w: %.200v", codec.ErrCorrupt, p)
	}()
	return read()
}
