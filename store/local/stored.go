package local

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// The index is in a bbolt file, not in Badger: its nodes are replaced all the time, and bbolt writes the next ones where
// the old ones were. Badger would have to compact them away, which answers wait for. Buckets:
//
//	meta      "format" → version
//	          "covered" → seq up to which the stored trees cover the chunks (8 bytes, big endian)
//	nodes     merchant, node id (8 bytes, big endian) → node of the merchant's stored tree
//	roots     merchant → root record of that tree
//	replaced  merchant → ids of nodes that the tree does without since its last merge (number, ids;
//	          uvarints), while these are being deleted
//
// Each node, each root record and each list of ids ends with its CRC-32C (4 bytes, big endian): bbolt itself has no
// checksums.
var (
	bucketNodes    = []byte("nodes")
	bucketRoots    = []byte("roots")
	bucketReplaced = []byte("replaced")
	keyCovered     = []byte("covered")
)

// indexFormat is the version of the file's layout. A file of another version is refused.
const indexFormat = "1"

func openIndexFile(path string) (*bolt.DB, error) {
	return openBolt(path, indexFormat, bucketNodes, bucketRoots, bucketReplaced)
}

// loadCovered reads up to which chunk the stored trees cover the events.
func loadCovered(tx *bolt.Tx) (uint64, error) {
	b := tx.Bucket(bucketMeta).Get(keyCovered)
	switch len(b) {
	case 0:
		return 0, nil
	case 8:
		return binary.BigEndian.Uint64(b), nil
	}
	return 0, fmt.Errorf("index.db: %w: what it covers", errCorrupt)
}

func storeCovered(tx *bolt.Tx, seq uint64) error {
	return tx.Bucket(bucketMeta).Put(keyCovered, binary.BigEndian.AppendUint64(nil, seq))
}

func nodeKey(m merchantKey, id uint64) []byte {
	return binary.BigEndian.AppendUint64(m[:], id)
}

// loadTree reads a merchant's stored tree.
func loadTree(tx *bolt.Tx, m merchantKey) (*tree, error) {
	b := tx.Bucket(bucketRoots).Get(m[:])
	if b == nil {
		return &tree{nextID: 1, series: []string{""}}, nil
	}
	t, err := decodeTree(unseal(b))
	if err != nil {
		return nil, fmt.Errorf("index.db: merchant %x: %w", m, err)
	}
	return t, nil
}

func storeTree(tx *bolt.Tx, m merchantKey, t *tree) error {
	return tx.Bucket(bucketRoots).Put(m[:], seal(t.encode(nil)))
}

// loadNode reads a node of a merchant's stored tree.
func loadNode(nodes *bolt.Bucket, m merchantKey, id uint64, a *nodeArena) (*node, error) {
	n, err := decodeNode(unseal(nodes.Get(nodeKey(m, id))), a)
	if err != nil {
		return nil, fmt.Errorf("index.db: node %d of merchant %x: %w", id, m, err)
	}
	return n, nil
}

func storeNode(nodes *bolt.Bucket, m merchantKey, id uint64, n *node) error {
	return nodes.Put(nodeKey(m, id), seal(n.encode(nil)))
}

// loadReplaced reads which nodes of a merchant are to be deleted.
func loadReplaced(tx *bolt.Tx, m merchantKey) (ids []uint64, err error) {
	b := tx.Bucket(bucketReplaced).Get(m[:])
	if b == nil {
		return nil, nil
	}
	d := decoder{b: unseal(b)}
	ids = make([]uint64, d.count())
	for i := range ids {
		ids[i] = d.uvarint()
	}
	if err := d.err("replaced nodes"); err != nil {
		return nil, fmt.Errorf("index.db: merchant %x: %w", m, err)
	}
	return ids, nil
}

func storeReplaced(tx *bolt.Tx, m merchantKey, ids []uint64) error {
	if len(ids) == 0 {
		return tx.Bucket(bucketReplaced).Delete(m[:])
	}
	b := binary.AppendUvarint(nil, uint64(len(ids)))
	for _, id := range ids {
		b = binary.AppendUvarint(b, id)
	}
	return tx.Bucket(bucketReplaced).Put(m[:], seal(b))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal puts its checksum behind a value.
func seal(b []byte) []byte { return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)) }

// unseal returns a value without its checksum; nothing, which no decoder accepts, where it is damaged or missing.
func unseal(b []byte) []byte {
	n := len(b) - crc32.Size
	if n < 0 || crc32.Checksum(b[:n], castagnoli) != binary.BigEndian.Uint32(b[n:]) {
		return nil
	}
	return b[:n]
}

// tree is a merchant's stored tree.
type tree struct {
	root    child    // id 0: no events
	nextID  uint64   // no node of this tree has an id from here on
	covered uint64   // chunks up to this seq are in the tree
	series  []string // by number, from 1
}

// The root record: next id, root id, covered (uvarints), first key, counts of the root, series (number, each
// length-prefixed).
func (t *tree) encode(b []byte) []byte {
	b = binary.AppendUvarint(b, t.nextID)
	b = binary.AppendUvarint(b, t.root.id)
	b = binary.AppendUvarint(b, t.covered)
	b = appendEntryKey(b, &entryKey{}, t.root.first)
	b = t.root.counts.encode(b)
	b = binary.AppendUvarint(b, uint64(len(t.series)))
	for _, s := range t.series {
		b = appendPrefixed(b, s)
	}
	return b
}

func decodeTree(b []byte) (*tree, error) {
	d := decoder{b: b}
	t := &tree{nextID: d.uvarint(), root: child{id: d.uvarint()}, covered: d.uvarint()}
	t.root.first = d.entryKey(&entryKey{})
	t.root.counts = d.counts(nil)
	t.series = make([]string, d.count())
	for i := range t.series {
		t.series[i] = string(d.prefixed())
	}
	return t, d.err("root record")
}

// The stored form of a node: 0 and the entries, or 1 and the children. Keys are differences to the
// key before.
//
//	entry:  key, series (uvarint)
//	child:  key, id (uvarint), number of series (uvarint), for each: series as difference to the
//	        one before (uvarint), events (uvarint)
//	key:    time (varint), seq (varint), index (uvarint, not a difference)

func (n *node) encode(b []byte) []byte {
	var prev entryKey
	if n.children == nil {
		b = binary.AppendUvarint(append(b, 0), uint64(len(n.entries)))
		for _, e := range n.entries {
			b = appendEntryKey(b, &prev, e.entryKey)
			b = binary.AppendUvarint(b, uint64(e.series))
		}
		return b
	}
	b = binary.AppendUvarint(append(b, 1), uint64(len(n.children)))
	for _, c := range n.children {
		b = appendEntryKey(b, &prev, c.first)
		b = binary.AppendUvarint(b, c.id)
		b = c.counts.encode(b)
	}
	return b
}

// decodeNode reads a node into memory of the arena.
func decodeNode(b []byte, a *nodeArena) (*node, error) {
	d := decoder{b: b}
	n := &node{}
	var prev entryKey
	switch kind, count := d.uvarint(), d.count(); kind {
	case 0:
		n.entries = extend(&a.entries, count, leafEntries)
		for i := range n.entries {
			n.entries[i] = entry{d.entryKey(&prev), uint32(d.uvarint())}
		}
	case 1:
		n.children = extend(&a.children, count, innerChildren)
		reserve(&a.counts, len(d.b)/2) // each takes two bytes or more
		for i := range n.children {
			c := child{first: d.entryKey(&prev), id: d.uvarint()}
			start := len(a.counts)
			a.counts = d.counts(a.counts)
			c.counts = slices.Clip(a.counts[start:])
			n.children[i] = c
		}
	default:
		d.failed = true
	}
	return n, d.err("index node")
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

// counts appends the counts that come next to c.
func (d *decoder) counts(c counts) counts {
	var prev uint32
	for range d.count() {
		prev += uint32(d.uvarint())
		c = append(c, seriesCount{prev, d.uvarint()})
	}
	return c
}

func appendEntryKey(b []byte, prev *entryKey, k entryKey) []byte {
	b = binary.AppendVarint(b, k.time-prev.time)
	b = binary.AppendVarint(b, int64(k.seq-prev.seq))
	b = binary.AppendUvarint(b, uint64(k.index))
	*prev = k
	return b
}

func (d *decoder) entryKey(prev *entryKey) entryKey {
	prev.time += d.varint()
	prev.seq += uint64(d.varint())
	prev.index = uint16(d.uvarint())
	return *prev
}
