package badgerdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/pb"
	"github.com/dgraph-io/ristretto/v2/z"

	"mtagd/store/local/codec"
	"mtagd/store/local/durable"
)

// NeedsCompaction reports whether it is time for Compact: what came since the last one is a third of what there was then, or is in
// so many tables that reads become slow. So each byte is written again about three times while the database grows ten times.
func (d *DB) NeedsCompaction() bool {
	h := d.acquire()
	defer d.release(h)
	tables, upper, lower := 0, int64(0), int64(0)
	for _, level := range h.db.Levels() {
		if level.Level == 0 {
			tables, upper = level.NumTables, level.Size
		} else {
			lower += level.Size
		}
	}
	return tables >= 4 && upper >= lower/3 || tables >= 48
}

// Compact writes all that is live into a new generation. It drops older versions and deletions, as Keep says, and what was written
// to the old generation is gone when it returns nil. Reads and commits go on. It calls pace about every MB.
//
//  1. Flush, so that all is in tables. Read these whole, and compare them with the list.
//  2. Copy the newest data as of Keep. Compare what was read with the list.
//  3. Read back what was written, and compare.
//  4. While commits wait, add what was written since Keep, compare that, and rename the new generation: from now on it counts.
//  5. When the last reader of the old generation ends, it is removed. CompactAndWait waits for that.
//
// After damage, Compact returns it, and nothing has changed. After a kill, the next Open removes the new generation, or, after 4,
// the old one.
func (d *DB) Compact(ctx context.Context, pace func()) error {
	_, err := d.compact(ctx, pace)
	return err
}

func (d *DB) compact(ctx context.Context, pace func()) (was *handle, err error) {
	d.compacting.Lock()
	defer d.compacting.Unlock()
	c := &compaction{d: d, ctx: ctx, pace: paced(ctx, pace)}
	return c.run()
}

// CompactAndWait is Compact. When it returns nil, what was deleted or replaced before the call is in no file.
func (d *DB) CompactAndWait(ctx context.Context, pace func()) error {
	was, err := d.compact(ctx, pace)
	if err != nil || was == nil {
		return err
	}
	select {
	case <-was.closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

type compaction struct {
	d    *DB
	ctx  context.Context
	pace func() error

	h       *handle // the old generation
	upto    uint64  // the version of what is in its tables
	keep    uint64  // the new generation has the newest data as of this version, and all entries after it
	want    contents
	dir     string // of the new generation
	number  int
	log     *badgerLog
	written contents
}

func (c *compaction) run() (was *handle, err error) {
	if err := c.begin(); err != nil || c.h == nil {
		return nil, err
	}
	defer c.d.release(c.h)
	if err := c.checkInput(); err != nil {
		return nil, err
	}
	c.number = c.h.number + 1
	c.dir = generationDir(c.d.dir, c.number) + newSuffix
	c.log = &badgerLog{log: c.d.log}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(c.dir))
		}
	}()
	if err := errors.Join(os.RemoveAll(c.dir), os.Mkdir(c.dir, 0o700)); err != nil {
		return nil, err
	}
	db, err := badger.OpenManaged(badgerOptions(c.dir, c.log))
	if err != nil {
		return nil, err
	}
	l := list{tables: map[uint64]listed{}}
	if err = c.copyBase(db); err == nil {
		err = c.readBack(l)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}

	c.d.writing.Lock()
	defer c.d.writing.Unlock()
	c.pace = atOnce
	err = errors.Join(c.copyRest(db), db.Close(), c.log.failure())
	if err == nil {
		err = c.readBack(l)
	}
	if err == nil {
		l.version = c.d.last
		err = l.write(c.dir)
	}
	if err != nil {
		return nil, err
	}
	return c.switchOver()
}

// begin flushes, and notes what is to be read. h stays nil when there is nothing to do.
func (c *compaction) begin() error {
	d := c.d
	d.writing.Lock()
	defer d.writing.Unlock()
	if _, err := d.writable(); err != nil {
		return err
	}
	if err := d.flush(); err != nil {
		return err
	}
	h := d.current
	bytes := int64(0)
	for _, t := range h.list.tables {
		c.want.join(t.contents)
		bytes += t.size
	}
	if len(h.list.tables) == 0 {
		return nil
	}
	if err := d.room(bytes); err != nil {
		return err
	}
	c.h, c.upto = d.acquire(), d.last
	c.keep = min(d.keep.Load(), c.upto)
	return nil
}

// checkInput reads all tables of the old generation.
func (c *compaction) checkInput() error {
	var all contents
	for _, t := range *c.h.tables.Load() {
		if t.version > c.upto {
			continue // it came meanwhile
		}
		found, err := t.readAll(c.pace)
		if err != nil {
			return c.failed(err)
		}
		all.join(found)
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
	return c.failed(&Damage{c.h.dir, fmt.Errorf("%w: %s %d entries, but %d are listed, or they are other ones", codec.ErrCorrupt, what, found.entries, c.want.entries)})
}

// copyBase copies the newest data as of keep.
func (c *compaction) copyBase(db *badger.DB) error {
	w := db.NewStreamWriter()
	err := w.Prepare()
	if err == nil {
		err = c.h.view(c.upto, func(txn *Txn) error { return c.copyNewest(txn, db, w) })
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
		if item.IsDeletedOrExpired() {
			continue
		}
		c.written.add(last, item.Version(), value)
		badger.KVToBuffer(&pb.KV{Key: last, Value: value, Version: item.Version(), ExpiresAt: item.ExpiresAt()}, buf)
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
	if err := c.h.view(math.MaxUint64, func(txn *Txn) error {
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
				err = errors.Join(c.d.room(0), allocateLogs(c.dir), c.ctx.Err())
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

// readBack reads the tables of the new generation that are not in the list, adds them, and compares all with what was written.
func (c *compaction) readBack(l list) error {
	ids, _, err := readManifest(c.dir, c.log)
	if err != nil {
		return err
	}
	var all contents
	for _, id := range ids {
		if _, ok := l.tables[id]; !ok {
			t, err := openTable(c.dir, id)
			if err != nil {
				return err
			}
			found, err := t.readAll(c.pace)
			if t.close(); err != nil {
				return err
			}
			l.tables[id] = listed{t.size, found, t.sum}
		}
		all.join(l.tables[id].contents)
	}
	if all != c.written {
		return fmt.Errorf("%w: %d entries were written to %s, but it has %d, or other ones", codec.ErrCorrupt, c.written.entries, c.dir, all.entries)
	}
	return nil
}

// switchOver makes the new generation current. The caller holds writing.
func (c *compaction) switchOver() (was *handle, err error) {
	d, dir := c.d, generationDir(c.d.dir, c.number)
	if err := errors.Join(durable.SyncPath(c.dir), os.Rename(c.dir, dir)); err != nil {
		return nil, err
	}
	err = durable.SyncPath(d.dir)
	var h *handle
	if err == nil {
		h, err = d.openGeneration(c.number, false)
	}
	if err != nil {
		// The old generation still counts, if the new one is gone.
		if err := errors.Join(os.RemoveAll(dir), durable.SyncPath(d.dir)); err != nil {
			message := fmt.Sprintf("%s cannot be removed: %v", dir, err)
			c.h.log.failed.Store(&message)
		}
		return nil, err
	}
	d.dirty = false
	return d.replace(h, true), nil
}

// Adopt replaces what the database has by what the database in another directory has, which must be closed, and loses its tables.
// Reads that have begun go on with the old tables, which are removed when they end. A kill leaves the one or the other.
func (d *DB) Adopt(dir string) error {
	d.compacting.Lock()
	defer d.compacting.Unlock()
	d.writing.Lock()
	defer d.writing.Unlock()
	newest, _, err := generation(dir)
	if err != nil {
		return err
	}
	c := compaction{d: d, h: d.current, dir: generationDir(dir, newest), number: d.current.number + 1}
	if _, err := c.switchOver(); err != nil {
		return err
	}
	d.last = max(d.last, d.current.list.version, d.current.newestVersion())
	d.met.first.Store(nil)
	return nil
}
