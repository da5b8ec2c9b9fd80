package journal

import (
	"errors"
	"fmt"

	"github.com/dgraph-io/badger/v4"

	"mtagd/store"
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
func (d DamagedChunk) MayHeal() bool { return store.KindOf(d.Err) == store.KindUnavailable }

// IsHidden reports whether a damaged table keeps the chunk from being found. The next start corrects the table or names it.
func (d DamagedChunk) IsHidden() bool { return errors.Is(d.Err, errDamagedBlock) }

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

// catchDamage is catchFault, except that other panics become errors too: Badger panics on some kinds of damage.
func catchDamage(read func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %.200v", codec.ErrCorrupt, p)
		}
	}()
	return catchFault(read)
}
