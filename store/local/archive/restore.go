package archive

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/codec"
)

// Writer writes a log into a new archive.
type Writer struct {
	Replaced bool // some block has replaced others

	a       *Archive
	c       *change
	pending map[codec.MerchantKey][]int // places in c.added
}

// Create creates an archive in dir, which must not exist or be empty.
func Create(dir string, log *slog.Logger) (*Writer, error) {
	a, err := Open(dir, log)
	if err != nil {
		return nil, err
	}
	a.writing.Lock()
	w := &Writer{a: a}
	if err := w.begin(); err != nil {
		return nil, errors.Join(err, a.Close())
	}
	return w, nil
}

func (w *Writer) begin() (err error) {
	w.pending = map[codec.MerchantKey][]int{}
	w.c, err = w.a.begin()
	return err
}

// writerBlocks is how many blocks Writer adds in one transaction.
const writerBlocks = 20_000

// Put adds the next stored block of the log. It must be sound.
func (w *Writer) Put(stored []byte) error {
	b, _, err := readHeader(stored)
	if err != nil {
		return err
	}
	if err := w.replace(b.merchant, b.first, b.last); err != nil {
		return err
	}
	if b.events > 0 {
		unpacked, err := w.a.coder.unpack(w.c.memory.content, stored)
		if err != nil {
			return err
		}
		w.c.memory.content = unpacked.content
		size := uint64(0)
		if err := unpacked.each(func(e Event) bool { size += uint64(len(e.Body)); return true }); err != nil {
			return err
		}
		w.pending[b.merchant] = append(w.pending[b.merchant], len(w.c.added))
		if err := w.c.addStored(&unpacked, size, stored); err != nil {
			return err
		}
	}
	if len(w.c.added)+len(w.c.removed) < writerBlocks {
		return nil
	}
	if err := w.c.commit(); err != nil {
		return err
	}
	return w.begin()
}

// replace removes the blocks that end within a range.
func (w *Writer) replace(m codec.MerchantKey, first, last codec.Position) error {
	within := func(p codec.Position) bool { return p.Compare(first) >= 0 && p.Compare(last) <= 0 }
	w.pending[m] = slices.DeleteFunc(w.pending[m], func(i int) bool {
		if !within(w.c.added[i].last) {
			return false
		}
		w.c.takeBack(i)
		w.Replaced = true
		return true
	})
	return w.a.view(func(tx *bolt.Tx) error {
		blocks := tx.Bucket(bucketBlocks).Cursor()
		for k, v := blocks.Seek(appendKey(nil, m, first)); bytes.HasPrefix(k, m[:]); k, v = blocks.Next() {
			at, err := parsePlaced(k, v)
			if err != nil {
				return err
			}
			if !within(at.last) {
				break
			}
			if !slices.ContainsFunc(w.c.removed, func(p placedOf) bool { return p.merchant == m && p.placed == at }) {
				w.c.remove(m, at)
			}
			w.Replaced = true
		}
		return nil
	})
}

// Close ends the writing. When it returns nil, the archive is on disk, with this boundary, and can be opened.
func (w *Writer) Close(boundary uint64) error {
	w.c.boundary = boundary
	err := w.c.commit()
	w.a.writing.Unlock()
	return errors.Join(err, w.a.Close())
}

// Cancel ends the writing without a result.
func (w *Writer) Cancel() error {
	w.a.writing.Unlock()
	return w.a.Close()
}

var errBusy = errors.New("the archive is being copied")
