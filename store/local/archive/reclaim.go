package archive

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// deadShare is which share of a pack file must be dead before its blocks are moved: 1/deadShare. So at most half of the space
// is dead, and for each byte that is freed, at most one is written.
const deadShare = 2

// Reclaim gives back the space of pack files that are mostly dead. It does nothing while the archive is being copied. It calls
// pace between blocks.
func (a *Archive) Reclaim(pace func()) error {
	for {
		moved, err := a.moveOne(func(_ uint32, r fileRecord, newest bool) bool { return !newest && r.dead*deadShare > r.end }, pace)
		if !moved || err != nil {
			if errors.Is(err, errBusy) {
				return nil
			}
			return err
		}
	}
}

// Purge removes all dead bytes: after it, no pack file has anything of what was replaced or removed before the call. It fails
// while the archive is being copied (IsBusy).
func (a *Archive) Purge(pace func()) error {
	last, err := a.newest()
	if err != nil {
		return err
	}
	for {
		moved, err := a.moveOne(func(id uint32, r fileRecord, _ bool) bool { return id <= last && r.dead > 0 }, pace)
		if !moved || err != nil {
			return err
		}
	}
}

func (a *Archive) newest() (last uint32, err error) {
	err = a.view(func(tx *bolt.Tx) error {
		files, err := loadFiles(tx)
		for id := range files {
			last = max(last, id)
		}
		return err
	})
	return last, err
}

// moveOne moves the blocks of the oldest file that is wanted to the end of the log, and removes the file. It reports whether
// there was one.
func (a *Archive) moveOne(wanted func(id uint32, r fileRecord, newest bool) bool, pace func()) (moved bool, err error) {
	a.writing.Lock()
	defer a.writing.Unlock()
	c, err := a.begin()
	if err != nil {
		return false, err
	}
	id, ok := c.oldest(wanted)
	if !ok {
		return false, nil
	}
	if c.known[id].gaps > 0 { // first what they may replace
		if older, ok := c.oldest(func(other uint32, r fileRecord, _ bool) bool { return other < id && r.dead > 0 }); ok {
			id = older
		}
	}
	if a.snapshots > 0 {
		return false, errBusy
	}
	if err := c.move(id, pace); err != nil {
		return false, c.abandon(err)
	}
	if r := c.after(id); r.dead < r.end {
		// Some block cannot be read. The file stays, because it is the proof.
		a.log.Error("a file of archive/ has blocks that cannot be read: its space is not given back", "file", a.files.path(id))
		a.stuck[id] = true
	} else {
		c.dropped = append(c.dropped, id)
	}
	if err := c.commit(); err != nil {
		return false, err
	}
	if a.stuck[id] {
		return true, nil
	}
	return true, a.files.remove(id)
}

// oldest returns the oldest file that is wanted and can be moved.
func (c *change) oldest(wanted func(id uint32, r fileRecord, newest bool) bool) (oldest uint32, ok bool) {
	needed := false // a file that cannot be moved has something that gaps replace
	ids := slices.Sorted(maps.Keys(c.known))
	for _, id := range ids {
		r := c.known[id]
		if c.a.stuck[id] {
			needed = needed || r.dead > 0
		} else if wanted(id, r, id == c.newest) && !(needed && r.gaps > 0) {
			return id, true
		}
	}
	return 0, false
}

// move adds the blocks of a file that the directory needs at the end of the log.
func (c *change) move(id uint32, pace func()) error {
	if id == c.newest {
		if err := c.next(); err != nil {
			return err
		}
	}
	f, err := c.a.files.file(id)
	if err != nil {
		return fmt.Errorf("move a file: %w", err)
	}
	return c.a.view(func(tx *bolt.Tx) error {
		blocks := tx.Bucket(bucketBlocks)
		return eachStored(io.NewSectionReader(f, 0, c.known[id].end), 0, func(offset int64, stored []byte) error {
			pace()
			b, _, err := readHeader(stored)
			if err != nil {
				return err
			}
			if b.events == 0 {
				c.gapsLost = true
				return nil
			}
			k := appendKey(nil, b.merchant, b.last)
			v := blocks.Get(k)
			if v == nil {
				return nil
			}
			at, err := parsePlaced(k, v)
			if err != nil || at.file != id || at.offset != offset {
				return err
			}
			c.remove(b.merchant, at)
			return c.addStored(&b, at.bytes, stored)
		}, func(int64, int64) {})
	})
}
