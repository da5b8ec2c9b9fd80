package local

import (
	"errors"
	"fmt"
	"os"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/control"
)

// healer replaces what is damaged while the engine runs, and writes again what that has cost and events still have.
type healer struct {
	*stored
	control   *control.Data
	reader    *reader
	archiver  *archiver
	remover   *remover
	now       func() time.Time
	diskFails time.Time // when the disk began to return errors, while damage is known (mayRebuild)
}

// archivePart is a directory beside archive/, to which a damaged one is copied (badgerdb.Rebuild).
const archivePart = "archive.part"

// openArchive opens the archive. A damaged one is replaced first by what can be read of it, so that damage costs only
// the events that it hit (rebuildtables.go). A kill leaves the one or the other.
func (h *healer) openArchive() error {
	dir := Parts(h.dir)["archive"]
	var damage error
	if h.archive, damage = archive.Open(dir, h.log); !errors.Is(damage, codec.ErrCorrupt) {
		return damage
	}
	h.log.Error("archive/ is damaged: what can be read of it is copied. This may take minutes", "error", damage)
	forgotten, err := h.journal.Forgotten()
	if err == nil {
		err = archive.Rebuild(h.opened, dir, forgotten, h.log, h.lostPart, h.repeatErasures)
	}
	if err != nil {
		return fmt.Errorf("archive/ is damaged, and cannot be rebuilt: %w. Nothing was changed. Restore a backup, or let "+
			"\"mtagd repair\" make a new directory of what there is", err)
	}
	h.noteRebuilt()
	h.archive, err = archive.Open(dir, h.log)
	return err
}

// noteRebuilt notes that a part of the archive may be lost. settleShorts finds out, and tries until it has.
func (h *healer) noteRebuilt() {
	_ = h.shorts.note(store.MerchantKey{}, errors.New("a part of archive/ may be lost"))
}

// lostPart logs that a part of a file of the archive is lost.
func (h *healer) lostPart(path string, err error) {
	h.log.Error("a part of archive/ is lost", "file", path, "error", err)
}

// repeatErasures has erasures done again: what they have removed may be back.
func (h *healer) repeatErasures() error { return h.control.RepeatErasures(h.opened) }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
