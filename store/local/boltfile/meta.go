package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"mtagd/store/local/codec"
)

// findMeta chooses the meta page that counts. When one is damaged, it may have been that of the last transaction. Then the
// other one would silently undo that transaction, so it is only taken when the damaged one can be seen to be older. It returns what
// is wrong.
func (s *Scan) findMeta() error {
	var metas [2]meta
	var valid [2]bool
	// The first meta is at 0, the second one page later.
	metas[0], valid[0] = s.metaAt(0)
	size := metas[0].pageSize
	if !valid[0] {
		for size = 1 << 10; size <= 1<<16; size *= 2 {
			if m, ok := s.metaAt(size); ok && m.pageSize == size {
				break
			}
		}
	}
	if size > 0 {
		metas[1], valid[1] = s.metaAt(size)
	}
	newest := -1
	for i := range metas {
		if valid[i] && metas[i].pageSize >= 1<<9 && (s.opt.Txid == 0 || metas[i].txid == s.opt.Txid) &&
			(newest < 0 || metas[i].txid > metas[newest].txid) {
			newest = i
		}
	}
	if newest < 0 {
		s.meta = meta{pageSize: os.Getpagesize(), size: uint64(len(s.data) / os.Getpagesize())}
		return errors.New("has no valid meta page")
	}
	s.meta = metas[newest]
	if all := uint64(len(s.data) / s.meta.pageSize); s.meta.size > all {
		err := fmt.Errorf("is cut short: %d bytes instead of %d", len(s.data), s.meta.size*uint64(s.meta.pageSize))
		s.meta.size = all
		return err
	}
	if other := 1 - newest; !valid[other] && s.opt.Txid == 0 && (metas[other].txid != s.meta.txid-1 || s.isOf(other*size, s.meta.txid+1)) {
		s.meta.size = uint64(len(s.data) / s.meta.pageSize)
		return &PageError{Page: uint64(other), Problem: "is a damaged meta page: the last change may be missing"}
	}
	return nil
}

// isOf reports whether the meta page at an offset would be sound with this transaction: one wrong bit can make the last transaction look
// like the one before the other page's.
func (s *Scan) isOf(offset int, txid uint64) bool {
	if offset+headerSize+metaSize > len(s.data) {
		return false
	}
	b := bytes.Clone(s.data[offset : offset+headerSize+metaSize])
	binary.LittleEndian.PutUint64(b[headerSize+48:], txid)
	_, ok := parseMeta(b)
	return ok
}

// metaAt reads the meta page at an offset.
func (s *Scan) metaAt(offset int) (m meta, ok bool) {
	if offset+headerSize+metaSize > len(s.data) {
		return m, false
	}
	return parseMeta(s.data[offset : offset+headerSize+metaSize])
}

// damaged adds codec.ErrCorrupt.
func damaged(err error) error {
	if errors.Is(err, codec.ErrCorrupt) {
		return err
	}
	return fmt.Errorf("%w: it %w", codec.ErrCorrupt, err)
}
