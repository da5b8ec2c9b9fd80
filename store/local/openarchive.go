package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
)

// archivePart is a directory beside archive/, where an archive of what can be read of a damaged one is written.
const archivePart = "archive.part"

// openArchive opens the archive. A damaged one is replaced first by what can be read of it, so that damage costs only the events that it hit
// (rebuildtables.go). A kill leaves the one or the other.
func (e *engine) openArchive() (a *archive.Archive, rebuilt bool, err error) {
	if err := os.RemoveAll(filepath.Join(e.dir, archivePart)); err != nil {
		return nil, false, err
	}
	dir := Parts(e.dir)["archive"]
	a, damage := archive.Open(dir, e.opt.Log)
	if !errors.Is(damage, codec.ErrCorrupt) {
		return a, false, damage
	}
	e.opt.Log.Error("archive/ is damaged: what can be read of it is copied. This may take minutes", "error", damage)
	forgotten, err := e.journal.Forgotten()
	if err == nil {
		err = archive.Rebuild(e.opened, dir, filepath.Join(e.dir, archivePart), forgotten, e.opt.Log, e.lostPart, e.repeatErasures)
	}
	if err != nil {
		return nil, false, fmt.Errorf("archive/ is damaged, and cannot be rebuilt: %w. Nothing was changed. Restore a backup, or let "+
			"\"mtagd repair\" make a new directory of what there is", err)
	}
	a, err = archive.Open(dir, e.opt.Log)
	return a, true, err
}

// lostPart logs that a part of a file of the archive is lost.
func (e *engine) lostPart(path string, err error) {
	e.opt.Log.Error("a part of archive/ is lost", "file", path, "error", err)
}

// repeatErasures has erasures done again: what they have removed may be back.
func (e *engine) repeatErasures() error { return e.RepeatErasures(e.opened) }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
