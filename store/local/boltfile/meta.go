package boltfile

import (
	"fmt"
	"slices"

	"mtagd/store/local/codec"
)

// findMeta chooses the meta page that counts. When one is damaged, it may have been that of the last transaction. Then the
// other one would silently undo that transaction, so it is only taken when the damaged one can be seen to be older.
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
		return fmt.Errorf("%w: it has no valid meta page", codec.ErrCorrupt)
	}
	s.meta = metas[newest]
	if other := 1 - newest; !valid[other] && s.opt.Txid == 0 && metas[other].txid != s.meta.txid-1 {
		return &PageError{Page: uint64(other), Problem: "is a damaged meta page: the last change may be missing"}
	}
	if s.meta.size > uint64(len(s.data)/s.meta.pageSize) {
		return fmt.Errorf("%w: it is cut short: %d bytes instead of %d", codec.ErrCorrupt, len(s.data), s.meta.size*uint64(s.meta.pageSize))
	}
	return nil
}

// metaAt reads the meta page at an offset, and corrects one bit.
func (s *Scan) metaAt(offset int) (m meta, ok bool) {
	if offset+headerSize+metaSize > len(s.data) {
		return m, false
	}
	b := slices.Clone(s.data[offset : offset+headerSize+metaSize])
	if m, ok = parseMeta(b); ok {
		return m, true
	}
	for i := headerSize; i < len(b); i++ {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if m, ok := parseMeta(b); ok {
				s.corrected[int64(offset+i)] = b[i]
				return m, true
			}
			b[i] ^= 1 << bit
		}
	}
	return m, false
}
