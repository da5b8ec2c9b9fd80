package archive

import (
	"bytes"
	"errors"
	"log/slog"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
)

// Writer writes blocks into a new archive: those of a backup, or those that could be read of damaged files. They come in any
// order, also blocks that others have replaced. Where two overlap, the one with the greater version is right: a block has
// all events from its first position to its last.
type Writer struct{ a *Archive }

// Create creates an archive in dir, which must not exist or be empty.
func Create(dir string, log *slog.Logger) (*Writer, error) {
	a, err := Open(dir, log)
	if err != nil {
		return nil, err
	}
	return &Writer{a: a}, nil
}

// Put adds the entry of a block. It must be sound (CheckBlock).
func (w *Writer) Put(e codec.Entry) error { return w.a.db.Put(e) }

// Close ends the writing: when it returns nil, the archive is on disk, with this boundary, and can be opened.
func (w *Writer) Close(boundary uint64) error {
	err := w.a.db.Flush()
	if err == nil {
		w.a.last = w.a.db.MaxVersion()
		err = w.finish(boundary)
	}
	return errors.Join(err, w.a.Close())
}

// Cancel ends the writing without a result.
func (w *Writer) Cancel() error { return w.a.Close() }

// finish deletes the blocks that others replace, and counts what each merchant has.
func (w *Writer) finish(boundary uint64) error {
	c, err := w.a.begin()
	if err != nil {
		return err
	}
	if err := w.a.db.View(func(txn *badgerdb.Txn) error {
		it := txn.NewIterator(badgerdb.IteratorOptions{Prefix: []byte{prefixBlock}, Reverse: true})
		var covers []cover // of the merchant: the blocks that reach back to where the iterator is
		var of store.MerchantKey
		for it.Seek(append([]byte{prefixBlock}, bytes.Repeat([]byte{0xff}, blockKeyBytes)...)); it.Valid(); it.Next() {
			k, err := parseBlockKey(it.Entry().Key)
			if err != nil {
				return err
			}
			b, _, err := readHeader(it.Entry().Value)
			if err != nil {
				return err
			}
			if k.merchant != of {
				covers, of = covers[:0], k.merchant
			}
			version, replaced := it.Entry().Version, false
			reach := covers[:0]
			for _, other := range covers {
				if other.first.Compare(k.last) > 0 {
					continue // it does not reach the earlier blocks either
				}
				reach = append(reach, other)
				replaced = replaced || other.replaces(version, k.revision, k.last)
			}
			covers = append(reach, cover{b.first, k.last, version, k.revision})
			if replaced {
				c.put(codec.Entry{Key: k.append(nil), Deleted: true})
			} else if err := c.count(txn, k.merchant, func(u *Usage) {
				u.add(usageOf(k, b, it.Entry().Value))
			}); err != nil {
				return err
			}
			if c.isFull() {
				if err := c.commit(); err != nil {
					return err
				}
			}
		}
		return nil
	}); err != nil {
		return err
	}
	c.boundary = boundary
	if err := c.commit(); err != nil {
		return err
	}
	return w.a.allowGaps(boundary) // what was lost
}

// cover is the range of positions of which a block has all events.
type cover struct {
	first, last store.Position
	version     uint64
	revision    uint32
}

// replaces reports whether the block replaces one whose end is in its range.
func (c cover) replaces(version uint64, revision uint32, last store.Position) bool {
	return c.version > version || c.last == last && c.revision > revision
}
