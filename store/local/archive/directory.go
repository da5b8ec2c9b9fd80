package archive

import (
	"encoding/binary"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/boltfile"
	"mtagd/store/local/codec"
)

const (
	directoryName = "blocks.db"
	format        = "1"
)

var (
	bucketBlocks    = []byte("blocks")
	bucketMerchants = []byte("merchants")
	bucketFiles     = []byte("files")
	buckets         = [][]byte{bucketBlocks, bucketMerchants, bucketFiles}

	keyBoundary = []byte("boundary")
)

// location is where a block is, and what it has.
type location struct {
	file           uint32
	offset, length int64
	events, bytes  uint64 // bytes of the bodies
}

// merchantRecord is what the archive has of a merchant.
type merchantRecord struct{ events, bytes, stored uint64 }

// fileRecord is the state of a pack file.
type fileRecord struct {
	end, dead int64
	gaps      uint64 // blocks without events
}

func appendKey(b []byte, m codec.MerchantKey, last codec.Position) []byte {
	return appendPosition(append(b, m[:]...), last)
}

func parseKey(k []byte) (m codec.MerchantKey, last codec.Position, err error) {
	d := codec.Decoder{B: k}
	copy(m[:], d.Bytes(len(m)))
	last = readPosition(&d)
	if len(d.B) > 0 {
		d.Fail()
	}
	return m, last, d.Err("key of a block")
}

func (l location) append(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(l.file))
	for _, v := range []uint64{uint64(l.offset), uint64(l.length), l.events, l.bytes} {
		b = binary.AppendUvarint(b, v)
	}
	return codec.Seal(b)
}

func parseLocation(v []byte) (l location, err error) {
	d := codec.Decoder{B: codec.Unseal(v)}
	l = location{uint32(d.Uvarint()), int64(d.Uvarint()), int64(d.Uvarint()), d.Uvarint(), d.Uvarint()}
	if l.length < int64(blockHeader+blockTrailer) || l.length > maxStored {
		d.Fail()
	}
	return l, d.Err("location of a block")
}

// maxStored is more than any block takes.
const maxStored = 2*maxContent + 1<<10

func loadBoundary(tx *bolt.Tx) (uint64, error) {
	v := tx.Bucket(boltfile.BucketMeta).Get(keyBoundary)
	if v == nil {
		return 0, nil
	}
	b := codec.Unseal(v)
	if len(b) != 8 {
		return 0, fmt.Errorf("%s: %w: boundary", directoryName, codec.ErrCorrupt)
	}
	return binary.BigEndian.Uint64(b), nil
}

func storeBoundary(tx *bolt.Tx, seq uint64) error {
	return tx.Bucket(boltfile.BucketMeta).Put(keyBoundary, codec.Seal(binary.BigEndian.AppendUint64(nil, seq)))
}

func loadMerchant(tx *bolt.Tx, m codec.MerchantKey) (r merchantRecord, err error) {
	v := tx.Bucket(bucketMerchants).Get(m[:])
	if v == nil {
		return r, nil
	}
	return parseMerchant(v)
}

func parseMerchant(v []byte) (r merchantRecord, err error) {
	d := codec.Decoder{B: codec.Unseal(v)}
	r = merchantRecord{d.Uvarint(), d.Uvarint(), d.Uvarint()}
	return r, d.Err("record of a merchant")
}

func storeMerchant(tx *bolt.Tx, m codec.MerchantKey, r merchantRecord) error {
	if r == (merchantRecord{}) {
		return tx.Bucket(bucketMerchants).Delete(m[:])
	}
	b := binary.AppendUvarint(nil, r.events)
	b = binary.AppendUvarint(b, r.bytes)
	return tx.Bucket(bucketMerchants).Put(m[:], codec.Seal(binary.AppendUvarint(b, r.stored)))
}

func loadFiles(tx *bolt.Tx) (map[uint32]fileRecord, error) {
	files := map[uint32]fileRecord{}
	err := tx.Bucket(bucketFiles).ForEach(func(k, v []byte) error {
		d := codec.Decoder{B: codec.Unseal(v)}
		r := fileRecord{int64(d.Uvarint()), int64(d.Uvarint()), d.Uvarint()}
		if len(k) != 4 {
			d.Fail()
		}
		if err := d.Err("record of a pack file"); err != nil {
			return fmt.Errorf("%s: %w", directoryName, err)
		}
		files[binary.BigEndian.Uint32(k)] = r
		return nil
	})
	return files, err
}

func storeFile(tx *bolt.Tx, id uint32, r fileRecord) error {
	b := binary.AppendUvarint(nil, uint64(r.end))
	b = binary.AppendUvarint(b, uint64(r.dead))
	return tx.Bucket(bucketFiles).Put(fileKey(id), codec.Seal(binary.AppendUvarint(b, r.gaps)))
}

func fileKey(id uint32) []byte { return binary.BigEndian.AppendUint32(nil, id) }
