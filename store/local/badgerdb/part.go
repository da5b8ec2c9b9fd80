package badgerdb

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4/y"

	"mtagd/store/local/codec"
)

// part is the tables of a directory.
type part struct {
	name   string
	dir    string
	clean  bool                   // the last stop was clean
	list   list                   // guarded by DB.writing
	tables atomic.Pointer[tables] // all, but for the newest
	writer *writer                // of the last part, from the first commit on; guarded by DB.writing
	fills  uint64                 // how often the memtable was filled up; guarded by DB.writing
	filled uint64                 // the last time whose table is there; guarded by DB.writing

	readers int           // those who use it, and one while it is in DB.parts; guarded by DB.mu
	closed  chan struct{} // after it is closed and removed, or removal has failed
}

func (h *part) isSealed() bool { return isSealed(h.name) }

// openPart checks the files of a part, and opens them.
func (d *DB) openPart(name string) (h *part, err error) {
	h = &part{name: name, dir: filepath.Join(d.dir, name), closed: make(chan struct{})}
	mayWrite := !d.readOnly && d.room(0) == nil
	log := &badgerLog{log: d.log}
	tables, l, isNew, err := checkFiles(h.dir, log, !mayWrite)
	if err != nil {
		return nil, err
	}
	if logs, _ := filepath.Glob(filepath.Join(h.dir, "*.mem")); isNew && len(logs) > 0 { // a version that had no list was killed
		closeTables(slices.Collect(maps.Values(tables)))
		if !mayWrite {
			return nil, errNeedsStart
		}
		return d.openLogs(name, log, len(tables))
	}
	if h.isSealed() && len(tables) == 0 {
		return nil, damaged(h.dir, "it has no tables")
	}
	h.clean, l.closed = l.closed, false
	h.list = l
	h.tables.Store(openTables(slices.Collect(maps.Values(tables))))
	return h, nil
}

var errNeedsStart = errors.New("the last start was cut off: a start with enough space on the disk must complete it")

// openLogs opens a part after Badger has made tables of the logs of its memtables.
func (d *DB) openLogs(name string, log *badgerLog, tables int) (*part, error) {
	dir := filepath.Join(d.dir, name)
	if err := errors.Join(removeOthers(dir, true), removeEmptyLogs(dir)); err != nil {
		return nil, err
	}
	w, err := openWriter(badgerOptions(dir, log).WithMemTableSize(oldMemTable), log)
	if err == nil && tableCount(w.db) < tables {
		err = errors.Join(fmt.Errorf("%w: Badger has not opened all tables of %s", codec.ErrCorrupt, dir), w.close())
	}
	if err != nil {
		return nil, err
	}
	if err := errors.Join(w.close(), removeOthers(dir, false)); err != nil {
		return nil, err
	}
	return d.openPart(name)
}

// removeEmptyLogs removes the logs of memtables that Badger has emptied, but not removed before it was killed. It would not
// open with them.
func removeEmptyLogs(dir string) error {
	logs, err := filepath.Glob(filepath.Join(dir, "*.mem"))
	for _, path := range logs {
		if info, failed := os.Stat(path); failed != nil {
			err = errors.Join(err, failed)
		} else if info.Size() == 0 {
			err = errors.Join(err, os.Remove(path))
		}
	}
	return err
}

// close closes the tables.
func (h *part) close() { closeTables(h.tables.Load().all) }

// stopWriting closes Badger, and adds the table that it has made.
func (h *part) stopWriting() error {
	w := h.writer
	if w == nil {
		return nil
	}
	if err := w.close(); err != nil {
		return err
	}
	h.writer = nil
	return errors.Join(h.addListed(w.log), removeOthers(h.dir, false))
}

// acquire returns the parts, which stay open until release.
func (d *DB) acquire() []*part {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range d.parts {
		h.readers++
	}
	return d.parts
}

// release retires parts after their last reader, when they do not count any more.
func (d *DB) release(parts []*part) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, h := range parts {
		if h.readers--; h.readers == 0 {
			d.retiring.Go(func() { d.retire(h) })
		}
	}
}

// retire closes and removes a part.
func (d *DB) retire(h *part) {
	defer close(h.closed)
	if w := h.writer; w != nil && w.log.failure() == nil && d.room(0) == nil { // or Badger would try for ever to write a table that nobody needs
		if err := w.close(); err != nil {
			d.log.Warn("an old part of a database cannot be closed", "dir", h.dir, "error", err)
		}
	}
	h.close()
	if err := d.removeLeaving(h); err != nil {
		d.log.Warn("an old part of a database cannot be removed now", "dir", h.dir, "error", err)
	}
}

// removeLeaving removes a part that is closed.
func (d *DB) removeLeaving(h *part) error {
	if err := removePart(d.dir, h.name); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.leaving = slices.DeleteFunc(d.leaving, func(l *part) bool { return l == h })
	return nil
}

// awaitRemoval returns when all parts that do not count any more are removed.
func (d *DB) awaitRemoval(ctx context.Context) error {
	d.mu.Lock()
	leaving := slices.Clone(d.leaving)
	d.mu.Unlock()
	for _, h := range leaving {
		select {
		case <-h.closed:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := d.removeLeaving(h); err != nil { // retire has removed it, or tried to
			return err
		}
	}
	return nil
}

// replace replaces neighbouring parts by others, which may be none. With no parts to replace, the others come last. The caller holds writing.
func (d *DB) replace(was, by []*part) {
	d.mu.Lock()
	for _, h := range by {
		h.readers = 1
	}
	d.leaving = append(d.leaving, was...)
	at := len(d.parts)
	if len(was) > 0 {
		at = slices.Index(d.parts, was[0])
	}
	d.parts = slices.Concat(d.parts[:at], by, d.parts[at+len(was):])
	d.mu.Unlock()
	d.release(was)
}

// current returns the part that is written to. The caller holds writing.
func (d *DB) current() *part { return d.parts[len(d.parts)-1] }

// bytes returns how many bytes the tables have.
func (h *part) bytes() (n int64) {
	for _, t := range h.tables.Load().all {
		n += t.size
	}
	return n
}

// newestVersion returns the greatest version in tables.
func (h *part) newestVersion() (version uint64) {
	for _, t := range h.tables.Load().all {
		version = max(version, t.version)
	}
	return version
}

// addNew reads back the tables that Badger has written since the last call, and adds them to the list in memory. The caller holds writing.
func (h *part) addNew() error {
	if tableCount(h.writer.db) == len(h.list.tables) {
		return nil
	}
	return h.addListed(h.writer.log)
}

// addListed is addNew for the tables that MANIFEST lists.
func (h *part) addListed(log *badgerLog) error {
	ids, _, err := readManifest(h.dir, log)
	if err != nil {
		return err
	}
	now := h.tables.Load()
	filter := now.filter
	if filter == nil {
		filter = new(keyFilter)
	}
	var added []*tableFile
	defer func() { h.tables.Store(now.with(added, filter)) }()
	for _, id := range ids {
		if _, ok := h.list.tables[id]; ok {
			continue
		}
		t, err := openTable(h.dir, id)
		if err != nil {
			return err
		}
		filled := h.filled
		c, err := t.readAll(atOnce, func(key []byte, v y.ValueStruct) {
			if filter.add(y.Hash(key)); string(key) == filler {
				filled = max(filled, binary.BigEndian.Uint64(v.Value))
			}
		})
		if err != nil {
			t.close()
			return err
		}
		h.list.tables[id] = listed{t.size, c, t.sum}
		h.filled = filled
		added = append(added, t)
	}
	return nil
}
