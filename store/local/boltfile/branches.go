package boltfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/codec"
)

// checkPages checks the pages on which bbolt relies without checking them: a branch that leads back to itself would end the
// process with a stack overflow, and a page that is in use and listed as free would be overwritten. It reads the branches and
// the list of free pages, which are about 1 % of a file.
func checkPages(db *bolt.DB) error {
	f, err := os.Open(db.Path())
	if err != nil {
		return err
	}
	defer f.Close()
	return db.View(func(tx *bolt.Tx) error {
		size := db.Info().PageSize
		c := pageChecker{f: f, pageSize: int64(size), end: uint64(tx.Size()) / uint64(size)}
		c.used = make([]bool, c.end)
		freelist, err := c.freelist(tx.ID())
		if err == nil {
			err = c.bucket(uint64(tx.Cursor().Bucket().Root()), 0, true)
		}
		if err == nil {
			err = c.checkFree(freelist)
		}
		return err
	})
}

type pageChecker struct {
	f        *os.File
	pageSize int64
	end      uint64 // of the pages
	used     []bool // by page
}

// maxDepth is more than a tree of bbolt can have.
const maxDepth = 64

// bucket checks the tree of a bucket. Only of the file's top bucket it reads leaves: those have the other buckets.
func (c *pageChecker) bucket(id uint64, depth int, top bool) error {
	if err := c.use(id); err != nil {
		return err
	}
	p, err := c.read(id)
	if err != nil {
		return err
	}
	switch {
	case depth > maxDepth:
		return c.wrong(id, "is too deep in its tree")
	case p.kind == kindLeaf && top:
		return c.buckets(p)
	case p.kind == kindLeaf:
		return nil
	case p.kind != kindBranch || p.n == 0:
		return c.wrong(id, "is no part of a tree")
	}
	var last []byte
	leaves := false
	for i := range p.n {
		e := p.b[headerSize+i*elementSize:]
		key, ok := p.cut(i, binary.NativeEndian.Uint32(e), binary.NativeEndian.Uint32(e[4:]))
		if !ok || i > 0 && bytes.Compare(last, key) >= 0 {
			return c.wrong(id, "has keys out of order")
		}
		last = key
		child := binary.NativeEndian.Uint64(e[8:])
		if i == 0 && !top {
			if child >= c.end {
				return c.wrong(id, "leads out of the file")
			}
			first, err := c.header(child)
			if err != nil {
				return err
			}
			leaves = first.kind == kindLeaf // then all are: the leaves of a tree have one depth
		}
		if leaves {
			err = c.use(child)
		} else {
			err = c.bucket(child, depth+1, top)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// buckets checks the buckets of a leaf of the top bucket. The root of a bucket without pages of its own is 0.
func (c *pageChecker) buckets(p readPage) error {
	for i := range p.n {
		e := p.b[headerSize+i*elementSize:]
		size := binary.NativeEndian.Uint32(e[8:])
		item, ok := p.cut(i, binary.NativeEndian.Uint32(e[4:]), size+binary.NativeEndian.Uint32(e[12:]))
		if !ok || binary.NativeEndian.Uint32(e) != 1 || uint64(size)+elementSize > uint64(len(item)) {
			return c.wrong(p.id, "has no buckets")
		}
		if root := binary.NativeEndian.Uint64(item[size:]); root != 0 {
			if err := c.bucket(root, 0, false); err != nil {
				return err
			}
		}
	}
	return nil
}

// use notes that a page is part of a tree. It must not be so already.
func (c *pageChecker) use(id uint64) error {
	if id < 2 || id >= c.end {
		return c.wrong(id, "is outside of the file")
	}
	if c.used[id] {
		return c.wrong(id, "is twice in a tree")
	}
	c.used[id] = true
	return nil
}

// freelist returns the page of the list of free pages, from the meta page of this transaction: behind the header are magic,
// version, page size and flags (4 each), root and sequence of the top bucket, and that page (8 each), the number of pages,
// the transaction, and a checksum (8 each).
func (c *pageChecker) freelist(tx int) (id uint64, err error) {
	for meta := range uint64(2) {
		b := make([]byte, 80)
		if _, err := c.f.ReadAt(b, int64(meta)*c.pageSize); err != nil {
			return 0, err
		}
		if binary.NativeEndian.Uint64(b[headerSize+48:]) == uint64(tx) {
			return binary.NativeEndian.Uint64(b[headerSize+32:]), nil
		}
	}
	return 0, c.wrong(0, "is not the meta page of the last transaction")
}

// checkFree checks that no free page is part of a tree.
func (c *pageChecker) checkFree(id uint64) error {
	if id >= c.end {
		return nil // the file has no list: bbolt makes it from the trees
	}
	p, err := c.read(id)
	if err != nil {
		return err
	}
	if p.kind != kindFreelist {
		return c.wrong(id, "is no list of free pages")
	}
	ids, n := p.b[headerSize:], uint64(p.n)
	if n == 0xffff {
		n, ids = binary.NativeEndian.Uint64(ids), ids[8:]
	}
	if n > uint64(len(ids)/8) {
		return c.wrong(id, "lists more free pages than it has space for")
	}
	for ; n > 0; n, ids = n-1, ids[8:] {
		if free := binary.NativeEndian.Uint64(ids); free < 2 || free >= c.end || c.used[free] || free == id {
			return c.wrong(free, "is listed as free")
		}
	}
	return nil
}

func (c *pageChecker) wrong(id uint64, format string) error {
	return fmt.Errorf("%w: page %d %s", codec.ErrCorrupt, id, format)
}

// readPage is a page, with all further ones that belong to it.
type readPage struct {
	id   uint64
	kind uint16
	n    int
	more uint32
	b    []byte
}

// cut returns the bytes to which element i refers.
func (p readPage) cut(i int, at, size uint32) (b []byte, ok bool) {
	from := uint64(headerSize+i*elementSize) + uint64(at)
	if from+uint64(size) > uint64(len(p.b)) {
		return nil, false
	}
	return p.b[from:][:size], true
}

func (c *pageChecker) header(id uint64) (p readPage, err error) {
	b := make([]byte, headerSize)
	if _, err := c.f.ReadAt(b, int64(id)*c.pageSize); err != nil {
		return readPage{}, err
	}
	p = readPage{id: id, kind: binary.NativeEndian.Uint16(b[8:]), n: int(binary.NativeEndian.Uint16(b[10:])), more: binary.NativeEndian.Uint32(b[12:])}
	if binary.NativeEndian.Uint64(b) != id || uint64(p.more) >= c.end-id {
		return readPage{}, c.wrong(id, "has a damaged header")
	}
	return p, nil
}

func (c *pageChecker) read(id uint64) (p readPage, err error) {
	if p, err = c.header(id); err != nil {
		return readPage{}, err
	}
	p.b = make([]byte, (1+int64(p.more))*c.pageSize)
	if _, err := c.f.ReadAt(p.b, int64(id)*c.pageSize); err != nil {
		return readPage{}, err
	}
	if p.kind != kindFreelist && headerSize+p.n*elementSize > len(p.b) {
		return readPage{}, c.wrong(id, "has too many elements")
	}
	return p, nil
}
