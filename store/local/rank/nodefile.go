package rank

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
)

var (
	bucketMeta  = []byte("meta")
	bucketNodes = []byte("nodes")
	bucketRoots = []byte("roots")
	bucketFreed = []byte("freed")

	buckets = [][]byte{bucketMeta, bucketNodes, bucketRoots, bucketFreed}

	// The keys of the bucket meta.
	keyFormat  = []byte("format")
	keyCovered = []byte("covered")
	keyRoots   = []byte("roots")
	keyOpening = []byte("opening")
)

// Format is the version of the file's layout.
const Format = "5"

// openFile opens or creates the file. Its error is codec.ErrCorrupt for damage, codec.UnknownFormat for another format.
func openFile(path string, opt bolt.Options) (*boltfile.DB, error) {
	db, err := boltfile.OpenChecked(path, opt, boltfile.CheckBranches)
	if err != nil {
		return nil, err
	}
	if err := boltfile.CatchDamage("index.db", func() error { return prepare(db) }); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// prepare checks the format and the buckets, and compares the root records with their sum. In a new file it writes them.
//
// bbolt has no checksums: damage of a page may hide records, or bring back those of an earlier transaction. Nodes and blocks
// have a seal that includes their number, so a wrong one is noticed. But without its root record a merchant would seem to
// have no events, and an earlier root record would be taken for the newest.
func prepare(db *boltfile.DB) error {
	isNew := false
	err := db.View(func(tx *bolt.Tx) error {
		if k, _ := tx.Cursor().First(); k == nil && !db.IsReadOnly() {
			isNew = true
			return nil
		}
		if meta := tx.Bucket(bucketMeta); meta != nil { // the buckets of another format may be others
			if found := string(meta.Get(keyFormat)); found != "" && found != Format {
				return codec.UnknownFormat{Found: found, Known: Format}
			}
		}
		for _, name := range buckets {
			if tx.Bucket(name) == nil {
				return fmt.Errorf("index.db: %w: a bucket is missing", codec.ErrCorrupt)
			}
		}
		if tx.Bucket(bucketMeta).Get(keyFormat) == nil {
			return fmt.Errorf("index.db: %w: the format is missing", codec.ErrCorrupt)
		}
		if db.IsReadOnly() {
			return nil
		}
		return compareRoots(tx)
	})
	if err != nil || !isNew {
		return err
	}
	return db.Update(func(tx *bolt.Tx) error {
		for _, name := range buckets {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		return errors.Join(tx.Bucket(bucketMeta).Put(keyFormat, []byte(Format)), storeCovered(tx, 0), storeMeta(tx, keyRoots, rootSum{}.encode()))
	})
}

// compareRoots fails when the root records are not those of their sum.
func compareRoots(tx *bolt.Tx) error {
	var sum rootSum
	err := tx.Bucket(bucketRoots).ForEach(func(k, v []byte) error {
		sum.add(k, v)
		return nil
	})
	if err == nil && !bytes.Equal(loadMeta(tx, keyRoots), sum.encode()) {
		err = fmt.Errorf("index.db: %w: root records are missing, or are not the newest", codec.ErrCorrupt)
	}
	return err
}

// rootSum is the number of root records, and the sum of their hashes.
type rootSum struct{ n, hash uint64 }

func (s *rootSum) add(k, v []byte)    { s.n, s.hash = s.n+1, s.hash+rootHash(k, v) }
func (s *rootSum) remove(k, v []byte) { s.n, s.hash = s.n-1, s.hash-rootHash(k, v) }

var crcTable = crc64.MakeTable(crc64.ECMA)

func rootHash(k, v []byte) uint64 { return crc64.Update(crc64.Checksum(k, crcTable), crcTable, v) }

func (s rootSum) encode() []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, s.n), s.hash)
}

func decodeRootSum(b []byte) (s rootSum, err error) {
	if len(b) != 16 {
		return s, fmt.Errorf("index.db: %w: sum of the root records", codec.ErrCorrupt)
	}
	return rootSum{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])}, nil
}

// loadMeta reads a meta record; nil when it is damaged or missing.
func loadMeta(tx *bolt.Tx, key []byte) []byte {
	return codec.Unseal(metaSeal(key), tx.Bucket(bucketMeta).Get(key))
}

func storeMeta(tx *bolt.Tx, key, value []byte) error {
	return tx.Bucket(bucketMeta).Put(key, codec.Seal(metaSeal(key), value))
}

func metaSeal(key []byte) []byte { return append([]byte(Format), key...) }

// SetOpening stores a number of the caller in the file. Call it before Start.
func (x *Index) SetOpening(number uint64) error {
	return boltfile.CatchDamage("index.db", func() error {
		return x.db.Update(func(tx *bolt.Tx) error { return storeMeta(tx, keyOpening, binary.BigEndian.AppendUint64(nil, number)) })
	})
}

// Opening returns the number that SetOpening has stored; 0 when there is none.
func (x *Index) Opening() (number uint64) {
	if err := x.db.View(func(tx *bolt.Tx) error {
		if b := loadMeta(tx, keyOpening); len(b) == 8 {
			number = binary.BigEndian.Uint64(b)
		}
		return nil
	}); err != nil {
		return 0 // who reads more finds the damage
	}
	return number
}

func storeCovered(tx *bolt.Tx, seq uint64) error {
	return storeMeta(tx, keyCovered, binary.BigEndian.AppendUint64(nil, seq))
}

func nodeKey(m store.MerchantKey, id uint64) []byte {
	return binary.BigEndian.AppendUint64(m[:], id)
}

// loadTree reads a merchant's stored tree.
func loadTree(tx *bolt.Tx, m store.MerchantKey) (*storedTree, error) {
	b := tx.Bucket(bucketRoots).Get(m[:])
	if b == nil {
		// The nodes may also be those of a first merge that was cut off.
		if k, _ := tx.Bucket(bucketNodes).Cursor().Seek(m[:]); bytes.HasPrefix(k, m[:]) {
			if err := compareRoots(tx); err != nil {
				return nil, fmt.Errorf("merchant %x: %w", m, err)
			}
		}
		return &storedTree{nextID: 1, series: []string{""}}, nil
	}
	t, err := decodeTree(codec.Unseal(m[:], b))
	if err != nil {
		return nil, fmt.Errorf("index.db: merchant %x: %w", m, err)
	}
	return t, nil
}

// storeTree writes a merchant's root record, and updates the sum of all.
func storeTree(tx *bolt.Tx, m store.MerchantKey, t *storedTree) error {
	sum, err := decodeRootSum(loadMeta(tx, keyRoots))
	if err != nil {
		return err
	}
	roots := tx.Bucket(bucketRoots)
	if old := roots.Get(m[:]); old != nil {
		sum.remove(m[:], old)
	}
	record := codec.Seal(m[:], t.encode(nil))
	sum.add(m[:], record)
	return errors.Join(roots.Put(m[:], record), storeMeta(tx, keyRoots, sum.encode()))
}

// loadNode reads a node of a merchant's stored tree into memory of the arena.
func loadNode(nodes *bolt.Bucket, m store.MerchantKey, id uint64, a *nodeArena) (*node, error) {
	key := nodeKey(m, id)
	n, err := decodeNode(codec.Unseal(key, nodes.Get(key)), a)
	if err != nil {
		return nil, fmt.Errorf("index.db: node %d of merchant %x: %w", id, m, err)
	}
	return n, nil
}

func storeNode(nodes *bolt.Bucket, m store.MerchantKey, id uint64, n *node) error {
	key := nodeKey(m, id)
	return nodes.Put(key, codec.Seal(key, n.encode(nil)))
}

// freedSubtree is a subtree that is no longer in its merchant's tree, and has not been deleted yet.
type freedSubtree struct {
	m      store.MerchantKey
	id     uint64 // of its topmost node
	height uint8  // 0: only this node
}

func storeFreed(tx *bolt.Tx, f freedSubtree) error {
	return tx.Bucket(bucketFreed).Put(nodeKey(f.m, f.id), []byte{f.height})
}

// loadFreed reads the freed subtrees of all merchants.
func loadFreed(tx *bolt.Tx) (all []freedSubtree, err error) {
	err = tx.Bucket(bucketFreed).ForEach(func(k, v []byte) error {
		if len(k) != 24 || len(v) != 1 {
			return fmt.Errorf("index.db: %w: freed subtree", codec.ErrCorrupt)
		}
		all = append(all, freedSubtree{store.MerchantKey(k[:16]), binary.BigEndian.Uint64(k[16:]), v[0]})
		return nil
	})
	return all, err
}

// storedTree is a merchant's stored trees.
type storedTree struct {
	root    child    // the zero child when there are no events
	runs    []run    // the events of overflow series once more, by name
	nextID  uint64   // greater than the ids of all nodes of these trees
	covered uint64   // the events of chunks up to this seq are in the tree
	series  []string // by number, from 1; 0 is unused
}

func (t *storedTree) encode(b []byte) []byte {
	b = binary.AppendUvarint(b, t.nextID)
	b = binary.AppendUvarint(b, t.covered)
	b = t.root.encode(b, &entry{}, false)
	b = binary.AppendUvarint(b, uint64(len(t.series)))
	for _, s := range t.series {
		b = codec.AppendPrefixed(b, s)
	}
	b = binary.AppendUvarint(b, uint64(len(t.runs)))
	for i := range t.runs {
		r := &t.runs[i]
		b = (&entry{Key: r.from}).appendKey(b, &entry{}, false)
		b = (&entry{Key: r.to}).appendKey(b, &entry{}, false)
		b = r.root.encode(b, &entry{}, true)
	}
	return b
}

func decodeTree(b []byte) (*storedTree, error) {
	d := codec.Decoder{B: b}
	t := &storedTree{nextID: d.Uvarint(), covered: d.Uvarint(), root: decodeChild(&d, &entry{}, &counts{}, nil)}
	t.series = make([]string, d.Count())
	for i := range t.series {
		t.series[i] = string(d.Prefixed())
	}
	t.runs = make([]run, d.Count())
	for i := range t.runs {
		var from, to entry
		from.decodeKey(&d, nil)
		to.decodeKey(&d, nil)
		t.runs[i] = run{decodeChild(&d, &entry{}, &counts{}, &strings.Builder{}), from.Key, to.Key}
	}
	return t, d.Err("root record")
}

// check fails when the runs have other numbers of events than the tree of times counts for overflow series.
func (t *storedTree) check() error {
	overflow := slices.Clone(t.root.counts)
	for _, c := range overflow {
		if int(c.series) >= len(t.series) {
			return fmt.Errorf("index.db: %w: an unknown series in a root record", codec.ErrCorrupt)
		}
	}
	overflow = slices.DeleteFunc(overflow, func(c seriesCount) bool { return !isOverflow(t.series[c.series]) })
	var inRuns tally
	for i := range t.runs {
		inRuns.add(t.runs[i].root.tally)
	}
	if !slices.Equal(overflow, inRuns.counts) {
		return fmt.Errorf("index.db: %w: the runs and the tree of times have different numbers of overflow events", codec.ErrCorrupt)
	}
	return nil
}

// decodeSize reads only the sum of the sizes of a tree's events.
func decodeSize(b []byte) (uint64, error) {
	d := codec.Decoder{B: b}
	d.Uvarint()
	d.Uvarint()
	return decodeChild(&d, &entry{}, &counts{}, nil).bytes, d.Err("root record")
}

// The first byte of a node says what it is; in a run, it is 2 more.
const (
	kindLeaf = iota
	kindInner
	kindNames // is added
)

func (n *node) encode(b []byte) []byte {
	kind, withNames := byte(kindLeaf), len(n.entries) > 0 && n.entries[0].name != ""
	if n.children != nil {
		kind, withNames = kindInner, len(n.children) > 0 && n.children[0].first.name != ""
	}
	if withNames {
		kind += kindNames
	}
	b = binary.AppendUvarint(append(b, kind), uint64(max(len(n.entries), len(n.children))))
	var prev entry
	for _, e := range n.entries {
		b = e.appendKey(b, &prev, withNames)
		b = binary.AppendUvarint(b, uint64(e.series))
		b = binary.AppendUvarint(b, uint64(e.size))
	}
	for i := range n.children {
		b = n.children[i].encode(b, &prev, withNames)
	}
	return b
}

func (c *child) encode(b []byte, prev *entry, withNames bool) []byte {
	b = c.first.appendKey(b, prev, withNames)
	b = binary.AppendUvarint(b, c.id)
	b = binary.AppendUvarint(b, c.bytes)
	return c.counts.encode(b)
}

// decodeChild appends the counts to all.
func decodeChild(d *codec.Decoder, prev *entry, all *counts, names *strings.Builder) child {
	prev.decodeKey(d, names)
	c := child{first: entry{Key: prev.Key, name: prev.name}, id: d.Uvarint(), tally: tally{bytes: d.Uvarint()}}
	start := len(*all)
	*all = decodeCounts(d, *all)
	c.counts = slices.Clip((*all)[start:])
	return c
}

// decodeNode decodes a node into memory of the arena.
func decodeNode(b []byte, a *nodeArena) (*node, error) {
	d := codec.Decoder{B: b}
	n := &node{}
	var prev entry
	var names *strings.Builder
	kind, count := d.Uvarint(), d.Count()
	if kind >= kindNames {
		kind, names = kind-kindNames, &strings.Builder{}
	}
	switch kind {
	case kindLeaf:
		n.entries = extend(&a.entries, count, leafEntries)
		for i := range n.entries {
			prev.decodeKey(&d, names)
			prev.series, prev.size = uint32(d.Uvarint()), uint32(d.Uvarint())
			n.entries[i] = prev
		}
	case kindInner:
		n.children = extend(&a.children, count, innerChildren)
		reserve(&a.counts, len(d.B)/2) // each count takes at least two bytes
		for i := range n.children {
			n.children[i] = decodeChild(&d, &prev, &a.counts, names)
		}
	default:
		d.Fail()
	}
	return n, d.Err("index node")
}

func (c counts) encode(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(c)))
	var prev uint32
	for _, s := range c {
		b = binary.AppendUvarint(b, uint64(s.series-prev))
		b = binary.AppendUvarint(b, s.n)
		prev = s.series
	}
	return b
}

// decodeCounts decodes counts, and appends them to c.
func decodeCounts(d *codec.Decoder, c counts) counts {
	var series, n uint64
	for range d.Count() {
		if b := d.B; len(b) >= 2 && b[0]|b[1] < 0x80 { // the common case, where queries spend most of their time
			series, n, d.B = series+uint64(b[0]), uint64(b[1]), b[2:]
		} else {
			series, n = series+d.Uvarint(), d.Uvarint()
		}
		c = append(c, seriesCount{uint32(series), n})
	}
	return c
}

// appendKey appends a key as difference to the previous one, which it then makes the previous one.
func (e *entry) appendKey(b []byte, prev *entry, withNames bool) []byte {
	if withNames {
		shared := 0
		for shared < min(len(e.name), len(prev.name)) && e.name[shared] == prev.name[shared] {
			shared++
		}
		b = binary.AppendUvarint(b, uint64(shared))
		b = codec.AppendPrefixed(b, e.name[shared:])
	}
	b = binary.AppendVarint(b, e.Time-prev.Time)
	b = binary.AppendVarint(b, int64(e.Seq-prev.Seq))
	b = binary.AppendUvarint(b, uint64(e.Index))
	*prev = *e
	return b
}

// decodeKey makes the previous key the next one. Its name is put into names, which is nil in the tree of times.
func (e *entry) decodeKey(d *codec.Decoder, names *strings.Builder) {
	if names != nil {
		e.decodeName(d, names)
	}
	e.Time += d.Varint()
	e.Seq += uint64(d.Varint())
	e.Index = uint16(d.Uvarint())
}

func (e *entry) decodeName(d *codec.Decoder, names *strings.Builder) {
	shared, rest := d.Uvarint(), d.Prefixed()
	if shared > uint64(len(e.name)) || shared == 0 && len(rest) == 0 {
		d.Fail()
		return
	}
	if len(rest) == 0 && shared == uint64(len(e.name)) {
		return // an equal name shares the memory of the last one
	}
	if names.Len() == 0 {
		names.Grow(len(d.B)) // one allocation for most nodes
	}
	start := names.Len()
	names.WriteString(e.name[:shared])
	names.Write(rest)
	e.name = names.String()[start:]
}
