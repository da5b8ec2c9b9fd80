package badgerdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/pb"
	"github.com/dgraph-io/ristretto/v2/z"

	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
)

// NeedsMerge reports whether it is time for Merge: what came since the last one is a third of what there was then, or is in so many
// tables that reads become slow.
func (d *DB) NeedsMerge() bool {
	parts := d.acquire()
	defer d.release(parts)
	return needsMerge(parts)
}

const mostNewTables = 48

func needsMerge(parts []*part) bool {
	newest := parts[len(parts)-1]
	tables, upper, lower := 0, int64(0), int64(0)
	for _, level := range newest.db.Levels() {
		if level.Level == 0 {
			tables, upper = level.NumTables, level.Size
		} else {
			lower += level.Size
		}
	}
	return tables >= 4 && upper >= (lower+size(parts[:len(parts)-1]))/3 || tables >= mostNewTables
}

func size(parts []*part) (bytes int64) {
	for _, h := range parts {
		bytes += h.bytes()
	}
	return bytes
}

// toMerge returns which parts Merge takes: the last ones, from this one on. It takes all while they are small. Later it takes the last one,
// and three older ones at a time if they are about as large as what it has already: so there are at most three of each size, each about
// four times as large as the one before, and an entry is written again once for each size. Much smaller ones come along.
func toMerge(parts []*part) (from int) {
	from = len(parts) - 1
	total := parts[from].bytes()
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

// Compact writes all that is live into a new part, and what comes meanwhile into another one. It drops older versions and deletions, as Keep
// says, and what was written to the old parts is gone when it returns nil. Reads and commits go on. It calls pace about every MB.
//
//  1. Flush, so that all is in tables. Read these whole, and compare them with the lists.
//  2. Copy the newest data as of Keep. Compare what was read with the lists.
//  3. Read back what was written, and compare.
//  4. While commits wait, write what came since Keep to another new part, compare that, and rename it: from now on both count.
//  5. When the last reader of the old parts ends, they are removed. CompactAndWait waits for that.
//
// After damage, Compact returns it, and nothing has changed. After a kill, the next Open removes the new parts, or, after 4, the old ones.
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
	c := &compaction{d: d, ctx: ctx, pace: paced(ctx, pace)}
	return c.run(from)
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
	ctx  context.Context
	pace func() error

	parts   []*part // the old ones
	older   []int   // the numbers of those before them
	upto    uint64  // the version of what is in their tables
	keep    uint64  // the sealed new part has the newest data as of this version, and the last one all entries after it
	want    contents
	number  int // of the new parts
	log     *badgerLog
	written contents
	stuck   bool // the new parts may count, though the old ones are in use
}

func (c *compaction) run(from func([]*part) int) (err error) {
	if err := c.begin(from); err != nil || c.parts == nil {
		return err
	}
	defer c.d.release(c.parts)
	if err := c.checkInput(); err != nil {
		return err
	}
	c.log = &badgerLog{log: c.d.log}
	var parts []*part // the new ones
	defer func() {
		if err != nil {
			for _, h := range parts {
				err = errors.Join(err, h.close())
			}
			if !c.stuck {
				err = errors.Join(err, os.RemoveAll(sealedDir(c.d.dir, c.number)))
			}
		}
	}()
	sealed := sealedDir(c.d.dir, c.number)
	if err := c.writePart(sealed, list{older: c.older}, c.copyBase); err != nil {
		return err
	}
	older := c.older
	if c.written.entries > 0 {
		older = append(slices.Clone(older), c.number)
		h, err := c.d.openPart(sealed, c.number, nil, false)
		if err != nil {
			return err
		}
		parts = append(parts, h)
	} else if err := os.RemoveAll(sealed); err != nil {
		return err
	}

	c.d.writing.Lock()
	defer c.d.writing.Unlock()
	c.pace, c.written = atOnce, contents{}
	dir := partDir(c.d.dir, c.number)
	if err := c.writePart(dir+newSuffix, list{version: c.d.last, older: older}, c.copyRest); err != nil {
		return errors.Join(err, os.RemoveAll(dir+newSuffix))
	}
	h, err := c.switchOver(dir, older)
	if err != nil {
		return err
	}
	c.d.dirty = false
	c.d.replace(c.parts, append(parts, h), true)
	return nil
}

// writePart makes a part, with a list that will have its tables.
func (c *compaction) writePart(dir string, l list, write func(*badger.DB) error) error {
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		return err
	}
	db, err := badger.OpenManaged(badgerOptions(dir, c.log))
	if err != nil {
		return err
	}
	err = errors.Join(write(db), db.Close(), c.log.failure())
	if err == nil {
		l.tables, err = c.readBack(dir)
	}
	if err == nil {
		err = l.write(dir)
	}
	if err == nil {
		err = durable.SyncPath(dir)
	}
	return err
}

// begin flushes, and notes what is to be read. parts stays nil when there is nothing to do.
func (c *compaction) begin(from func([]*part) int) error {
	d := c.d
	d.writing.Lock()
	defer d.writing.Unlock()
	if _, err := d.writable(); err != nil {
		return err
	}
	if err := d.flush(); err != nil {
		return err
	}
	all := d.acquire()
	n := from(all)
	for _, h := range all[:n] {
		c.older = append(c.older, h.number)
	}
	d.release(all[:n])
	for _, h := range all[n:] {
		for _, t := range h.list.tables {
			c.want.join(t.contents)
		}
	}
	bytes := size(all[n:])
	if bytes == 0 {
		d.release(all[n:])
		return nil
	}
	if err := d.room(bytes); err != nil {
		d.release(all[n:])
		return err
	}
	c.parts, c.number = all[n:], d.current().number+1
	c.upto, c.keep = d.last, min(d.keep.Load(), d.last)
	return nil
}

// checkInput reads all tables of the old parts.
func (c *compaction) checkInput() error {
	var all contents
	for _, h := range c.parts {
		for _, t := range h.tables.Load().all {
			if t.version > c.upto {
				continue // it came meanwhile
			}
			found, err := t.readAll(c.pace, nil)
			if err != nil {
				return c.failed(err)
			}
			all.join(found)
		}
	}
	return c.compare("the tables have", all)
}

// failed notes damage.
func (c *compaction) failed(err error) error {
	if c.ctx.Err() == nil {
		c.d.met.note(err)
	}
	return err
}

func (c *compaction) compare(what string, found contents) error {
	if found == c.want {
		return nil
	}
	return c.failed(&Damage{c.d.dir, fmt.Errorf("%w: %s %d entries, but %d are listed, or they are other ones", codec.ErrCorrupt, what, found.entries, c.want.entries)})
}

// copyBase copies the newest data as of keep.
func (c *compaction) copyBase(db *badger.DB) error {
	w := db.NewStreamWriter()
	err := w.Prepare()
	if err == nil {
		err = c.d.view(c.parts, c.upto, func(txn *Txn) error { return c.copyNewest(txn, db, w) })
	}
	if err != nil {
		w.Cancel()
		return err
	}
	return errors.Join(w.Flush(), c.log.failure())
}

func (c *compaction) copyNewest(txn *Txn, db *badger.DB, w *badger.StreamWriter) error {
	var read contents
	var last, value []byte
	buf := z.NewBuffer(2<<20, "compaction")
	defer func() { _ = buf.Release() }()
	bytesWritten := 0
	write := func() error {
		if err := errors.Join(c.pace(), c.d.room(0)); err != nil {
			return err
		}
		bytesWritten += buf.LenNoPadding()
		err := w.Write(buf)
		buf.Reset()
		for err == nil && bytesWritten/tableBytes > tableCount(db)+2 { // or memory would fill with tables that are being written
			time.Sleep(time.Millisecond)
			err = errors.Join(c.ctx.Err(), c.log.failure())
		}
		return err
	}
	it := txn.NewIterator(badger.IteratorOptions{AllVersions: true})
	defer it.Close()
	for it.Rewind(); it.Valid(); it.Next() {
		item := it.Item()
		var err error
		if value, err = item.ValueCopy(value); err != nil {
			return err
		}
		read.add(item.Key(), item.Version(), value)
		if item.Version() > c.keep || bytes.Equal(item.Key(), last) {
			continue
		}
		last = item.KeyCopy(last)
		kv := &pb.KV{Key: last, Value: value, Version: item.Version(), ExpiresAt: item.ExpiresAt()}
		if item.IsDeletedOrExpired() {
			if len(c.older) == 0 {
				continue
			}
			kv.Value, kv.ExpiresAt, kv.Meta = nil, 0, []byte{metaDelete} // it hides what older parts have
		}
		c.written.add(last, item.Version(), kv.Value)
		badger.KVToBuffer(kv, buf)
		if buf.LenNoPadding() >= 1<<20 {
			if err := write(); err != nil {
				return err
			}
		}
	}
	if txn.bad != nil {
		return txn.bad
	}
	if err := c.compare("reading has found", read); err != nil {
		return err
	}
	return write()
}

// copyRest adds what was written after keep. The caller holds writing.
func (c *compaction) copyRest(db *badger.DB) error {
	batch, size := db.NewManagedWriteBatch(), 0
	defer batch.Cancel()
	if err := c.d.view(c.parts, math.MaxUint64, func(txn *Txn) error {
		it := txn.NewIterator(badger.IteratorOptions{AllVersions: true, SinceTs: c.keep})
		defer it.Close()
		for it.Rewind(); it.Valid(); it.Next() {
			item := it.Item()
			e := badger.NewEntry(item.KeyCopy(nil), nil)
			e.ExpiresAt = item.ExpiresAt()
			var err error
			if item.IsDeletedOrExpired() {
				err = batch.DeleteAt(e.Key, item.Version())
			} else if e.Value, err = item.ValueCopy(nil); err == nil {
				err = batch.SetEntryAt(e, item.Version())
			}
			c.written.add(e.Key, item.Version(), e.Value)
			if size += len(e.Key) + len(e.Value); err == nil && size > MaxCommitBytes {
				size = 0
				err = errors.Join(c.d.room(0), allocateLogs(partDir(c.d.dir, c.number)+newSuffix), c.ctx.Err())
			}
			if err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	return batch.Flush()
}

// readBack reads the tables of a new part, and compares them with what was written.
func (c *compaction) readBack(dir string) (tables map[uint64]listed, err error) {
	ids, _, err := readManifest(dir, c.log)
	if err != nil {
		return nil, err
	}
	tables = map[uint64]listed{}
	var all contents
	for _, id := range ids {
		t, err := openTable(dir, id)
		if err != nil {
			return nil, err
		}
		found, err := t.readAll(c.pace, nil)
		if t.close(); err != nil {
			return nil, err
		}
		tables[id] = listed{t.size, found, t.sum}
		all.join(found)
	}
	if all != c.written {
		return nil, fmt.Errorf("%w: %d entries were written to %s, but it has %d, or other ones", codec.ErrCorrupt, c.written.entries, dir, all.entries)
	}
	return tables, nil
}

// switchOver renames the new last part, and opens it: from now on it counts. The caller holds writing.
func (c *compaction) switchOver(dir string, older []int) (h *part, err error) {
	if err := os.Rename(dir+newSuffix, dir); err != nil {
		return nil, err
	}
	err = durable.SyncPath(c.d.dir)
	if err == nil {
		h, err = c.d.openPart(dir, c.number, older, false)
	}
	if err != nil {
		// The old parts still count, if the new one has its name no longer. Otherwise nothing may be written to the old ones.
		if undo := errors.Join(os.Rename(dir, dir+newSuffix), durable.SyncPath(c.d.dir)); undo != nil {
			message := fmt.Sprintf("%s cannot be removed: %v", dir, undo)
			c.stuck = true
			c.d.current().log.failed.Store(&message)
			return nil, errors.Join(err, undo)
		}
		return nil, errors.Join(err, os.RemoveAll(dir+newSuffix))
	}
	return h, nil
}

// Adopt replaces what the database has by what the database in another directory has, which must be closed and have one part, and loses its
// tables. Reads that have begun go on with the old tables, which are removed when they end. A kill leaves the one or the other.
func (d *DB) Adopt(dir string) error {
	d.compacting.Lock()
	defer d.compacting.Unlock()
	d.writing.Lock()
	defer d.writing.Unlock()
	counts, _, err := findParts(dir)
	if err != nil {
		return err
	}
	if len(counts) != 1 {
		return fmt.Errorf("%s has %d parts instead of one", dir, len(counts))
	}
	c := compaction{d: d, number: d.current().number + 1}
	to := partDir(d.dir, c.number)
	if err := errors.Join(os.RemoveAll(to+newSuffix), os.Rename(partDir(dir, counts[0]), to+newSuffix)); err != nil {
		return err
	}
	h, err := c.switchOver(to, nil)
	if err != nil {
		return err
	}
	d.replace(d.parts, []*part{h}, true)
	d.last = max(d.last, h.list.version, h.newestVersion())
	d.dirty = false
	d.met.first.Store(nil)
	return nil
}
