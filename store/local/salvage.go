package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
	"mtagd/store/local/rank"
	"mtagd/store/local/space"
)

// The directories beside archive/ while a damaged archive is salvaged.
const (
	archivePart    = "archive.part"    // is being written
	archiveNew     = "archive.new"     // is complete, and replaces archive/
	damagedArchive = "archive.damaged" // what was replaced last
)

// openArchive opens the archive. A damaged one is salvaged first, so that damage costs only the events that it hit:
//
//  1. Write what can be read to archive.part.
//  2. Note the events that are lost, as far as the index knows them (damaged.jsonl). Have erasures repeated.
//  3. Rename archive.part to archive.new. From now on, archive.new is the archive.
//  4. Remove index.db, which is rebuilt later. Rename the damaged archive to archive.damaged, and archive.new to archive/ (finishSalvage).
//
// After a kill before 3, the next start begins again; after 3, it continues with 4.
func (e *engine) openArchive() (*archive.Archive, error) {
	if err := os.RemoveAll(filepath.Join(e.dir, archivePart)); err != nil {
		return nil, err
	}
	dir := Parts(e.dir)["archive"]
	a, err := archive.Open(dir, e.opt.Log)
	if !errors.Is(err, codec.ErrCorrupt) {
		return a, err
	}
	e.opt.Log.Error("archive/ is damaged: what can be read of it is copied. This may take minutes", "error", err)
	if err := e.salvageArchive(dir, err); err != nil {
		return nil, fmt.Errorf("archive/ is damaged, and cannot be salvaged: %w. Nothing was changed. Restore a backup, or let "+
			"\"mtagd repair\" make a new directory of what there is", err)
	}
	if err := finishSalvage(e.dir); err != nil {
		return nil, err
	}
	return archive.Open(dir, e.opt.Log)
}

// salvageArchive makes archive.new from the archive in dir; damage is why dir cannot be opened.
func (e *engine) salvageArchive(dir string, damage error) error {
	size, err := sizeOf(dir)
	if err != nil {
		return err
	}
	if free, err := space.Free(e.dir); err != nil {
		return err
	} else if free < MinFree+size {
		return fmt.Errorf("the copy needs %d MiB more space on the disk", (MinFree+size-free)>>20+1)
	}
	forgotten, err := e.journal.Forgotten()
	if err != nil {
		return err
	}
	part := filepath.Join(e.dir, archivePart)
	if err := archive.Salvage(e.opened, dir, part, forgotten, e.opt.Log, func(path string, err error) {
		e.opt.Log.Error("a part of archive/ is lost", "file", path, "error", err)
	}); err != nil {
		return err
	}
	a, err := archive.Open(part, e.opt.Log)
	if err != nil {
		return err
	}
	if err := errors.Join(e.noteLost(a, damage), a.Close()); err != nil {
		return err
	}
	if err := e.RepeatErasures(e.opened); err != nil { // events that were removed may be back
		return err
	}
	return errors.Join(os.Rename(part, filepath.Join(e.dir, archiveNew)), durable.SyncPath(e.dir))
}

// noteLost notes the events that the index has, but not the salvaged archive.
func (e *engine) noteLost(a *archive.Archive, damage error) error {
	n := note{Chunk: max(1, a.Boundary()), Reason: "archive/ was damaged, and was salvaged: " + damage.Error()}
	x, err := rank.OpenReadOnly(Parts(e.dir)["index"])
	if err == nil {
		v := verifier{Verification: store.Verification{Found: func(store.Finding) {}, Read: func(store.Part, uint64, uint64) {}}, ctx: e.opened,
			control: e.Data, journal: e.journal, archive: a, index: x, damage: e.damage, now: e.opt.Now(),
			hold: func() func() { return func() {} }, unchanged: func(codec.MerchantKey) bool { return true }}
		var lost eventGroup
		lost, err = v.lostOfArchive()
		if err = errors.Join(err, x.CloseReadOnly()); err == nil && lost.events > 0 {
			n.Events, n.Merchants, n.From, n.To = lost.events, lost.ids(), timeOf(lost.from), timeOf(lost.to)
		}
	}
	if e.opened.Err() != nil {
		return e.opened.Err()
	}
	if err != nil {
		e.opt.Log.Error("it is not known which events of archive/ are lost, as index.db cannot be read", "error", err)
	}
	n.Archived = fmt.Sprintf("salvaged, %d events lost", n.Events)
	if err := e.damage.add(n); err != nil {
		return fmt.Errorf("note what is lost: %w", err)
	}
	return nil
}

// lostOfArchive returns the events up to the boundary that the index has, but not the archive.
func (v *verifier) lostOfArchive() (lost eventGroup, err error) {
	v.indexed = map[codec.MerchantKey]*merchantSums{}
	for _, step := range []func() error{v.verifyIndex, v.verifyJournal, v.verifyArchive} {
		if err := step(); err != nil {
			return lost, err
		}
	}
	c, err := v.differences()
	if err != nil {
		return lost, err
	}
	for _, d := range c.chunks {
		if d.seq <= v.boundary {
			lost.merge(&d.indexed)
		}
	}
	return lost, nil
}

// finishSalvage puts a salvaged archive in the place of the damaged one.
func finishSalvage(dir string) error {
	salvaged := filepath.Join(dir, archiveNew)
	if _, err := os.Stat(salvaged); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	parts := Parts(dir)
	if err := removeIfExists(parts["index"]); err != nil {
		return err
	}
	if exists(parts["archive"]) { // else a kill has come after this
		kept := filepath.Join(dir, damagedArchive)
		if err := errors.Join(os.RemoveAll(kept), os.Rename(parts["archive"], kept), durable.SyncPath(dir)); err != nil {
			return fmt.Errorf("keep the damaged archive: %w", err)
		}
	}
	return errors.Join(os.Rename(salvaged, parts["archive"]), durable.SyncPath(dir))
}

// archiveDir returns the directory of the archive to read: that of the salvaged archive, if it has not replaced archive/ yet.
func archiveDir(dir string) string {
	if salvaged := filepath.Join(dir, archiveNew); exists(salvaged) {
		return salvaged
	}
	return Parts(dir)["archive"]
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// sizeOf returns how many bytes the files of a directory have.
func sizeOf(dir string) (size int64, err error) {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			return 0, err
		}
		size += info.Size()
	}
	return size, err
}
