package badgerdb

import (
	"context"
	"path/filepath"
	"slices"
	"sync/atomic"
)

// part is the tables of a directory.
type part struct {
	name   string
	dir    string
	list   list                   // guarded by DB.writing
	tables atomic.Pointer[tables] // what reads use
	ready  bool                   // prepare has succeeded; guarded by DB.writing

	unread []*tableFile // written since the last Flush; guarded by DB.writing
	filter *keyFilter   // of the keys in tables that were added, or that FilterTables has read; made under DB.writing

	readers int           // its users, plus one while it is in DB.parts; guarded by DB.mu
	closed  chan struct{} // closed after the part was closed and removed, or could not be removed
}

// openPart checks the files of a part, and opens them.
func (d *DB) openPart(name string) (h *part, err error) {
	h = &part{name: name, dir: filepath.Join(d.dir, name), closed: make(chan struct{})}
	tables, l, err := checkFiles(h.dir)
	if err != nil {
		return nil, err
	}
	if isSealed(name) && len(tables) == 0 {
		return nil, damaged(h.dir, "it has no tables")
	}
	h.list = l
	h.tables.Store(newTables(tables, nil))
	return h, nil
}

// close closes the tables.
func (h *part) close() { closeTables(slices.Concat(h.tables.Load().all, h.unread)) }

// publish lets reads use the tables that were written since the last Flush.
func (h *part) publish() {
	if len(h.unread) > 0 {
		was := h.tables.Load()
		filter := was.filter
		if len(was.all) == 0 {
			filter = h.filter
		}
		h.tables.Store(newTables(slices.Concat(was.all, h.unread), filter))
		h.unread = nil
	}
}

// sharedFilter returns the part's filter. The caller holds DB.writing.
func (h *part) sharedFilter() *keyFilter {
	if h.filter == nil {
		h.filter = new(keyFilter)
	}
	return h.filter
}

// prepare writes the list to the disk, and removes files that are not listed. Only then may tables be added to the part.
func (h *part) prepare() error {
	if h.ready {
		return nil
	}
	err := h.list.write(h.dir)
	if err == nil {
		err = h.removeOthers()
	}
	h.ready = err == nil
	return err
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

// counts reports whether a part still counts: it does until another one replaces it.
func (d *DB) counts(h *part) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.parts, h)
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

// replace replaces neighbouring parts by others. With none to replace, the others come last. The caller holds writing.
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
