package badgerdb

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
)

// NeedsMerge reports whether the unsealed parts are as large as the sealed ones, or have so many tables that reads become
// slow.
func (d *DB) NeedsMerge() bool {
	parts := d.acquire()
	defer d.release(parts)
	from := firstUnsealed(parts)
	tables := 0
	for _, h := range parts[from:] {
		tables += len(h.tables.Load().all)
	}
	return tables >= 4 && size(parts[from:]) >= size(parts[:from]) || tables >= mostNewTables
}

const mostNewTables = 48

// firstUnsealed returns the place of the first unsealed part: the last one, or one before it, after a compaction that has
// failed.
func firstUnsealed(parts []*part) int {
	for i, h := range parts {
		if !isSealed(h.name) {
			return i
		}
	}
	return len(parts)
}

func size(parts []*part) (bytes int64) {
	for _, h := range parts {
		bytes += h.bytes()
	}
	return bytes
}

// toMerge returns the first of the parts that Merge takes, up to the last one. While the sealed parts are small, it takes
// all parts. Later it takes the unsealed ones, then three sealed ones at a time if they are about as large as what it has
// taken, and single ones that are much smaller. So there are at most three parts of each size, each size is about four times
// the one below, and an entry is rewritten once for each size.
func toMerge(parts []*part) (from int) {
	from = firstUnsealed(parts)
	total := size(parts[from:])
	if size(parts[:from]) <= 3*total {
		return 0
	}
	for from > 0 {
		take := 1
		if parts[from-1].bytes() > total/4 {
			take = 3
			if from < take || slices.ContainsFunc(parts[from-take:from], func(h *part) bool { return h.bytes() > 2*total }) {
				break
			}
		}
		total += size(parts[from-take : from])
		from -= take
	}
	return from
}

// Compact writes all live entries into a new part: of each key the newest one, and no deletions. Reads and writes go on
// meanwhile. It calls pace often.
//
//  1. Flush, so that all is in tables, and begin a new last part: what comes from now on is there.
//  2. Read all tables of the old parts, and copy what is live. Compare the number and hashes of what was read with the
//     lists.
//  3. Read back what was written, and compare.
//  4. Write the list of the last part: from now on, the new part counts instead of the old ones.
//  5. Remove the old parts when their last reader ends. CompactAndWait waits for that.
//
// After damage, which it returns, the old parts stay in use. After a kill, Open removes the new part, or after step 4 the
// old ones.
func (d *DB) Compact(ctx context.Context, pace func()) error {
	return d.compact(ctx, pace, func([]*part) int { return 0 })
}

// Merge is Compact of some of the newest parts. It keeps deletions, unless it takes all parts.
func (d *DB) Merge(ctx context.Context, pace func()) error {
	return d.compact(ctx, pace, toMerge)
}

func (d *DB) compact(ctx context.Context, pace func(), from func([]*part) int) error {
	d.compacting.Lock()
	defer d.compacting.Unlock()
	return (&compaction{d: d, pace: paced(ctx, pace)}).run(from)
}

// CompactAndWait is Compact. When it returns nil, what was deleted or replaced before the call is in no file.
func (d *DB) CompactAndWait(ctx context.Context, pace func()) error {
	if err := d.Compact(ctx, pace); err != nil {
		return err
	}
	return d.awaitRemoval(ctx) // also of parts that a call before this one has replaced
}

type compaction struct {
	d    *DB
	pace func() error

	parts []*part  // the old ones
	older []string // the names of the parts before the old ones
	name  string   // of the new part
	want  contents
	stuck bool // it is not known which of them count

	builder *builder // of the new part's tables
	list    list     // of the new part
}

func (c *compaction) run(from func([]*part) int) (err error) {
	if err := c.begin(from); err != nil || c.parts == nil {
		return err
	}
	defer c.d.release(c.parts)
	dir := filepath.Join(c.d.dir, c.name)
	var parts []*part // the new one, if it has something
	hasTables, err := c.writePart(dir)
	if err == nil && hasTables {
		var h *part
		if h, err = c.d.openPart(c.name); err == nil {
			parts = append(parts, h)
		}
	}
	if err == nil {
		err = c.switchOver(parts)
	}
	if err != nil {
		for _, h := range parts {
			h.close()
		}
	}
	if err != nil && !c.stuck || len(parts) == 0 {
		if failed := os.RemoveAll(dir); failed != nil {
			return errors.Join(err, failed)
		}
	}
	return err
}

// writePart writes the new part, with its list.
func (c *compaction) writePart(dir string) (hasTables bool, err error) {
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		return false, err
	}
	c.builder, c.list = newBuilder(tableBytes), list{older: c.older, tables: map[uint64]listed{}}
	defer c.builder.release()
	err = c.d.snapshotOf(c.parts).View(func(txn *Txn) error { return c.copyEntries(txn, dir) })
	if err == nil {
		err = cmp.Or(c.list.write(dir), durable.SyncPath(c.d.dir))
	}
	return len(c.list.tables) > 0, err
}

// flush writes the table that was begun.
func (c *compaction) flush(dir string) error {
	if c.builder.table == nil {
		return nil
	}
	if err := c.d.Room(0); err != nil {
		return err
	}
	id := uint64(len(c.list.tables) + 1)
	t, err := c.builder.write(dir, id, c.pace, nil)
	if err != nil {
		return err
	}
	c.list.tables[id] = listed{t.size, c.builder.contents, t.sum}
	t.close()
	return c.pace()
}

// begin flushes, begins a new last part, and notes what is to be read. parts stays nil when there is nothing to do.
func (c *compaction) begin(from func([]*part) int) error {
	d := c.d
	d.writing.Lock()
	defer d.writing.Unlock()
	if err := cmp.Or(d.failed, d.Room(0)); err != nil {
		return err
	}
	if err := d.flush(); err != nil {
		return err
	}
	full := d.parts
	if d.current().bytes() == 0 {
		full = full[:len(full)-1]
	}
	if size(full) == 0 {
		return nil
	}
	n := from(full)
	if n == len(full) { // a compaction has come before
		return nil
	}
	if err := d.Room(size(full[n:])); err != nil {
		return err
	}
	// Begin a new part, unless a compaction that failed has already begun one.
	if len(full) == len(d.parts) || slices.Contains(names(full), sealedName(d.current())) {
		if err := d.beginPart(); err != nil {
			return err
		}
	}
	all := d.acquire()
	c.parts = all[n:len(full)]
	d.release(all[:n])
	d.release(all[len(full):])
	for _, h := range c.parts {
		for _, t := range h.list.tables {
			c.want.join(t.contents)
		}
	}
	c.older = names(all[:n])
	c.name = sealedName(d.current())
	return nil
}

// sealedName returns the name of the sealed part that a compaction makes, after it has begun a last part.
func sealedName(last *part) string { return "s" + last.name[1:] }

func names(parts []*part) (all []string) {
	for _, h := range parts {
		all = append(all, h.name)
	}
	return all
}

// beginPart makes a new last part. The caller holds writing, and has flushed.
func (d *DB) beginPart() error {
	return d.addPart(list{version: d.last, older: names(d.parts)}, "")
}

// addPart makes a new last part of a directory, or an empty one when from is "".
func (d *DB) addPart(l list, from string) error {
	if d.failed != nil {
		return d.failed
	}
	name, err := nameDir(d.dir, l, from)
	var h *part
	if err == nil {
		h, err = d.openPart(name)
	}
	if err != nil && name != "" { // while this part keeps its name, it is the last one, and only that may be written
		dir := filepath.Join(d.dir, name)
		undo := os.Rename(dir, dir+newSuffix)
		if undo == nil {
			undo = durable.SyncPath(d.dir)
		}
		if undo == nil {
			err = errors.Join(err, os.RemoveAll(dir+newSuffix))
		} else {
			d.failed = fmt.Errorf("%s cannot be removed: %w", dir, undo)
		}
	}
	if err != nil {
		return errors.Join(err, d.failed)
	}
	d.replace(nil, []*part{h})
	return nil
}

// nameDir gives a directory, or an empty one when from is "", the name of a new last part of the database in dir. From then
// on it counts. With an error, it has the name that is returned, or none.
func nameDir(dir string, l list, from string) (name string, err error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	last := 0
	for _, f := range files {
		n, _ := numberOf(strings.TrimSuffix(f.Name(), newSuffix))
		last = max(last, n)
	}
	name = fmt.Sprint("g", last+1)
	to := filepath.Join(dir, name)
	if from == "" {
		from = to + newSuffix
		if err := os.Mkdir(from, 0o700); err != nil {
			return "", err
		}
	}
	if err = l.write(from); err == nil {
		err = os.Rename(from, to)
	}
	if err != nil {
		return "", errors.Join(err, os.RemoveAll(from))
	}
	return name, durable.SyncPath(dir)
}

// copyEntries copies what is live to the new part.
func (c *compaction) copyEntries(txn *Txn, dir string) error {
	var read contents
	bytesRead := 0
	it := txn.NewIterator(IteratorOptions{Deletions: true, each: func(e *codec.Entry) {
		read.join(contentsOf(e))
		bytesRead += len(e.Value) + len(e.Key)
	}})
	for it.Rewind(); it.Valid(); it.Next() {
		if bytesRead >= paceBytes {
			bytesRead = 0
			if err := c.pace(); err != nil {
				return err
			}
		}
		e := it.Entry()
		if e.Deleted && len(c.older) == 0 { // else it hides older entries in the parts before
			continue
		}
		if c.builder.bytes >= tableBytes {
			if err := c.flush(dir); err != nil {
				return err
			}
		}
		c.builder.add(e)
	}
	if txn.bad != nil {
		return txn.bad
	}
	if read != c.want {
		err := damaged(c.d.dir, "reading has found %d entries, but %d are listed, or they are other ones", read.entries, c.want.entries)
		c.d.noteDamage(err)
		return err
	}
	return c.flush(dir)
}

// switchOver makes the new part count instead of the old ones.
func (c *compaction) switchOver(parts []*part) error {
	d := c.d
	d.writing.Lock()
	defer d.writing.Unlock()
	h := d.current()
	was := h.list.older
	h.list.older = slices.Concat(c.older, names(parts))
	if err := h.list.write(h.dir); err != nil {
		h.list.older = was
		if undo := h.list.write(h.dir); undo != nil { // nobody knows which parts count
			c.stuck, d.failed = true, fmt.Errorf("%s cannot be written: %w", filepath.Join(h.dir, listName), undo)
			return errors.Join(err, d.failed)
		}
		return err
	}
	d.replace(c.parts, parts)
	return nil
}
