package local

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	bolt "go.etcd.io/bbolt"
)

// The index's file is a bbolt file: what a merge replaces is reused by a later one, so nothing has to be compacted, which
// answers would wait for. Buckets:
//
//	meta   "format" → version
//	       "covered" → seq up to which the stored trees cover the chunks (8 bytes, big endian)
//	nodes  merchant, node id (8 bytes, big endian) → node of the merchant's stored tree (tree.go)
//	roots  merchant → root record of that tree (root.go)
//
// Each node and each root record ends with its CRC-32C (4 bytes, big endian): bbolt itself has no checksums.
var (
	bucketNodes = []byte("nodes")
	bucketRoots = []byte("roots")
	keyCovered  = []byte("covered")
)

// indexFormat is the version of the file's layout. A file of another version is refused.
const indexFormat = "1"

func openIndexFile(path string) (*bolt.DB, error) {
	return openBolt(path, indexFormat, bucketNodes, bucketRoots)
}

func nodeKey(m merchantKey, id uint64) []byte {
	return binary.BigEndian.AppendUint64(m[:len(m):len(m)], id)
}

// loadTree reads a merchant's stored tree.
func loadTree(tx *bolt.Tx, m merchantKey) (*tree, error) {
	b := tx.Bucket(bucketRoots).Get(m[:])
	if b == nil {
		return &tree{nextID: 1, series: []string{""}}, nil
	}
	b, err := unseal(b)
	if err == nil {
		var t *tree
		if t, err = decodeTree(b); err == nil {
			return t, nil
		}
	}
	return nil, fmt.Errorf("index root of merchant %x: %w", m, err)
}

// loadNode reads a node of a merchant's stored tree.
func loadNode(nodes *bolt.Bucket, m merchantKey, id uint64) (*node, error) {
	b, err := unseal(nodes.Get(nodeKey(m, id)))
	if err == nil {
		var n *node
		if n, err = decodeNode(b); err == nil {
			return n, nil
		}
	}
	return nil, fmt.Errorf("index node %d of merchant %x: %w", id, m, err)
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
	return 0, fmt.Errorf("%w: what the index covers", errCorrupt)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal puts its checksum behind a value.
func seal(b []byte) []byte { return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli)) }

// unseal returns a value without its checksum; a value that is missing has none.
func unseal(b []byte) ([]byte, error) {
	n := len(b) - crc32.Size
	if n < 0 || crc32.Checksum(b[:n], castagnoli) != binary.BigEndian.Uint32(b[n:]) {
		return nil, errCorrupt
	}
	return b[:n], nil
}
