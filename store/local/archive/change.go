package archive

import (
	"errors"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/codec"
)

// change is one change of the archive: blocks that are appended to pack files, and blocks that leave the directory. It is
// made as a whole by commit, or not at all.
type change struct {
	a        *Archive
	known    map[uint32]fileRecord // as the directory has them
	newest   uint32
	files    map[uint32]fileRecord // those that change
	buf      []byte                // is behind the end of the newest file
	added    []placedOf
	removed  []placedOf
	dropped  []uint32 // files that have nothing any more
	boundary uint64
	gapsLost bool // gaps were left out of the log

	memory memory
}

// placed is a block in the directory.
type placed struct {
	last codec.Position
	location
}

type placedOf struct {
	merchant codec.MerchantKey
	placed
}

func parsePlaced(k, v []byte) (p placed, err error) {
	if _, p.last, err = parseKey(k); err == nil {
		p.location, err = parseLocation(v)
	}
	return p, err
}

// begin begins a change. The caller holds writing until commit or abandon has returned.
func (a *Archive) begin() (*change, error) {
	if a.failed != nil {
		return nil, a.failed
	}
	c := &change{a: a, files: map[uint32]fileRecord{}, boundary: a.Boundary()}
	err := a.view(func(tx *bolt.Tx) (err error) {
		c.known, err = loadFiles(tx)
		return err
	})
	for id := range c.known {
		c.newest = max(c.newest, id)
	}
	return c, err
}

// record returns the state of a file after the change.
func (c *change) record(id uint32) fileRecord {
	if r, ok := c.files[id]; ok {
		return r
	}
	return c.known[id]
}

// after returns the state of a file as commit will leave it.
func (c *change) after(id uint32) fileRecord {
	r := c.record(id)
	for _, p := range c.removed {
		if p.file == id {
			r.dead += p.length
		}
	}
	return r
}

// writeBytes is how much is written to a pack file at once.
const writeBytes = 1 << 20

// add appends a block; bytes is the size of its bodies.
func (c *change) add(b *block, bytes uint64) error {
	return c.append(b, bytes, func(dst []byte) []byte { return c.a.coder.append(dst, b) })
}

// addStored appends a block that was stored elsewhere.
func (c *change) addStored(b *block, bytes uint64, stored []byte) error {
	return c.append(b, bytes, func(dst []byte) []byte { return append(dst, stored...) })
}

// addGap appends a gap (log.go).
func (c *change) addGap(m codec.MerchantKey, first, last codec.Position) error {
	return c.add(&block{merchant: m, first: first, last: last}, 0)
}

func (c *change) append(b *block, bytes uint64, appendStored func([]byte) []byte) error {
	r := c.record(c.newest)
	if c.newest == 0 || r.end >= packBytes {
		if err := c.next(); err != nil {
			return err
		}
		r = c.files[c.newest]
	}
	start := len(c.buf)
	c.buf = appendStored(c.buf)
	l := location{c.newest, r.end, int64(len(c.buf) - start), uint64(b.events), bytes}
	r.end += l.length
	if b.events > 0 {
		c.added = append(c.added, placedOf{b.merchant, placed{b.last, l}})
	} else {
		r.dead += l.length // a gap is only in the log
		r.gaps++
	}
	c.files[c.newest] = r
	if len(c.buf) < writeBytes {
		return nil
	}
	return c.write()
}

// takeBack removes a block that this change has added.
func (c *change) takeBack(i int) {
	p := &c.added[i]
	r := c.files[p.file]
	r.dead += p.length
	c.files[p.file] = r
	p.events = 0
}

// next begins the next file.
func (c *change) next() error {
	if err := c.flush(); err != nil {
		return err
	}
	if err := c.a.files.create(c.newest + 1); err != nil {
		return err
	}
	c.newest++
	c.files[c.newest] = fileRecord{}
	return nil
}

// flush writes and syncs what was added to the newest file.
func (c *change) flush() error {
	if _, changed := c.files[c.newest]; !changed {
		return nil
	}
	if err := c.write(); err != nil {
		return err
	}
	return c.a.files.sync(c.newest)
}

func (c *change) write() error {
	if len(c.buf) == 0 {
		return nil
	}
	err := c.a.files.write(c.newest, c.record(c.newest).end-int64(len(c.buf)), c.buf)
	c.a.metrics.written.Add(float64(len(c.buf)))
	c.buf = c.buf[:0]
	return err
}

// remove takes a block out of the directory.
func (c *change) remove(m codec.MerchantKey, p placed) {
	c.removed = append(c.removed, placedOf{m, p})
}

// commit makes the change. When it returns nil, the change is on disk.
func (c *change) commit() error {
	if err := c.flush(); err != nil {
		return c.abandon(err)
	}
	for _, p := range c.removed {
		r := c.record(p.file)
		r.dead += p.length
		c.files[p.file] = r
	}
	if err := c.a.update(c.enter); err != nil {
		return c.abandon(err)
	}
	c.a.boundary.Store(c.boundary)
	c.a.metrics.changed(c)
	return nil
}

// enter makes the change in the directory.
func (c *change) enter(tx *bolt.Tx) error {
	blocks := tx.Bucket(bucketBlocks)
	blocks.FillPercent = 0.9 // most blocks are added behind all others of their merchant
	merchants := map[codec.MerchantKey]merchantRecord{}
	count := func(m codec.MerchantKey, change func(r *merchantRecord)) error {
		r, ok := merchants[m]
		if !ok {
			var err error
			if r, err = loadMerchant(tx, m); err != nil {
				return err
			}
		}
		change(&r)
		merchants[m] = r
		return nil
	}
	for _, p := range c.removed {
		if err := errors.Join(blocks.Delete(appendKey(nil, p.merchant, p.last)), count(p.merchant, func(r *merchantRecord) {
			r.events, r.bytes, r.stored = r.events-p.events, r.bytes-p.bytes, r.stored-uint64(p.length)
		})); err != nil {
			return err
		}
	}
	for _, p := range c.added {
		if p.events == 0 {
			continue // taken back
		}
		if err := errors.Join(blocks.Put(appendKey(nil, p.merchant, p.last), p.location.append(nil)), count(p.merchant, func(r *merchantRecord) {
			r.events, r.bytes, r.stored = r.events+p.events, r.bytes+p.bytes, r.stored+uint64(p.length)
		})); err != nil {
			return err
		}
	}
	for m, r := range merchants {
		if err := storeMerchant(tx, m, r); err != nil {
			return err
		}
	}
	end := LogPosition(0)
	for id, r := range c.files {
		if err := storeFile(tx, id, r); err != nil {
			return err
		}
		end = max(end, logPosition(id, r.end))
	}
	for _, id := range c.dropped {
		if err := tx.Bucket(bucketFiles).Delete(fileKey(id)); err != nil {
			return err
		}
	}
	if c.gapsLost {
		if err := storeGapsLost(tx, end); err != nil {
			return err
		}
	}
	return storeBoundary(tx, c.boundary)
}

// abandon gives up a change, and gives back its space. It returns the error.
func (c *change) abandon(err error) error {
	for id := range c.files {
		old, known := c.known[id]
		if known {
			_ = c.a.files.truncate(id, old.end)
		} else {
			_ = c.a.files.remove(id) // else the next start does it
		}
	}
	return c.a.fail(err)
}
