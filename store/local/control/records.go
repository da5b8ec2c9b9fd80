package control

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"
	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/rules"
)

const inLog = "log" // the bucket of the audit log

// buckets is in the order of sums.sum: those of the first version, and then the kinds that came later.
var buckets = func() []string {
	all := []string{inMeta, rules.Partners, rules.Keys, rules.Uses, rules.Merchants, rules.Tags, rules.Domains, rules.Replies, rules.Removals,
		rules.Expiries, rules.Erasures, rules.Suppressed, rules.Sessions, inLog}
	for _, kind := range rules.Kinds() {
		if !slices.Contains(all, kind) {
			all = append(all, kind)
		}
	}
	return append(all, inDocuments)
}()

const inMeta = rules.Meta

// The keys of the bucket meta that are not of package rules.
const (
	keyFormat = "format"
	keySums   = "sums"
)

const sealSize = 8

// sealOf returns the seal of a value, which binds it to its bucket and key: a record in another place is damaged.
func sealOf[K string | []byte](bucket string, key K, value []byte) uint64 {
	h := xxhash.New()
	var size [4]byte
	for _, part := range [][]byte{[]byte(bucket), []byte(key), value} {
		binary.BigEndian.PutUint32(size[:], uint32(len(part)))
		_, _ = h.Write(size[:]) // never fails, nor does the next one
		_, _ = h.Write(part)
	}
	return h.Sum64()
}

func seal(bucket, key string, value []byte) []byte {
	return binary.BigEndian.AppendUint64(slices.Clip(value), sealOf(bucket, key, value))
}

// unseal returns the value of a record, and its seal; false when the record is damaged.
func unseal[K string | []byte](bucket string, key K, sealed []byte) (value []byte, sum uint64, ok bool) {
	n := len(sealed) - sealSize
	if n < 0 {
		return nil, 0, false
	}
	value, sum = sealed[:n:n], binary.BigEndian.Uint64(sealed[n:])
	return value, sum, sum == sealOf(bucket, key, value)
}

// isPlain reports whether a record has no seal: the format, which older versions read, and the sums, of which no sum is
// kept.
func isPlain(bucket, key string) bool { return bucket == inMeta && key == keyFormat }

func isSummed(bucket, key string) bool {
	return bucket != inMeta || key != keyFormat && key != keySums
}

// sum is the number of a bucket's records, and the sum of their seals modulo 2^64. With it a record that is missing or too
// old is found, although all that are there are sound.
type sum struct{ n, seals uint64 }

type sums map[string]sum

func (s sums) add(bucket string, seal uint64) {
	of := s[bucket]
	s[bucket] = sum{of.n + 1, of.seals + seal}
}

func (s sums) remove(bucket string, seal uint64) {
	of := s[bucket]
	s[bucket] = sum{of.n - 1, of.seals - seal}
}

// sum identifies the records: with other ones it is another number. A number that is 0 stands for no records.
func (s sums) sum() uint64 {
	h := xxhash.New()
	for _, bucket := range buckets {
		if of := s[bucket]; of.n > 0 {
			_, _ = fmt.Fprintln(h, bucket, of.n, of.seals) // never fails
		}
	}
	return h.Sum64()
}

// bytes returns the sums of all buckets: name (length-prefixed), number (uvarint), sum (8 bytes, big endian). Before them is
// the transaction that writes them, as the number of a bucket without a name, which earlier versions skip.
func (s sums) bytes(transaction uint64) []byte {
	b := binary.BigEndian.AppendUint64(binary.AppendUvarint(codec.AppendPrefixed(nil, ""), transaction), 0)
	for _, bucket := range buckets {
		b = codec.AppendPrefixed(b, bucket)
		b = binary.AppendUvarint(b, s[bucket].n)
		b = binary.BigEndian.AppendUint64(b, s[bucket].seals)
	}
	return b
}

// parseSums also returns the transaction that wrote the sums; 0 when an earlier version wrote them.
func parseSums(b []byte) (s sums, transaction uint64, err error) {
	s = sums{}
	d := codec.Decoder{B: b}
	for len(d.B) > 0 {
		bucket, n := string(d.Prefixed()), d.Uvarint()
		if seals := d.Bytes(8); bucket == "" {
			transaction = n
		} else if seals != nil {
			s[bucket] = sum{n, binary.BigEndian.Uint64(seals)}
		}
	}
	return s, transaction, d.Err("sums of control.db")
}

// writesOf returns what a change writes, in all buckets.
func writesOf(c rules.Change) ([]rules.Record, error) {
	all := slices.Clip(c.Records)
	for _, e := range c.Entries {
		w, err := inAuditLog(e)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, nil
}

func inAuditLog(e store.AuditEntry) (rules.Record, error) {
	value, err := json.Marshal(e)
	return rules.Record{Kind: inLog, Key: auditKey(e.ID, e.At), Value: value}, err
}

// storeAll makes changes in control.db, and keeps s up to date. It fails rather than replace a damaged record, whose seal is
// not known.
func storeAll(tx *bolt.Tx, s sums, writes []rules.Record) error {
	for _, w := range writes {
		if old := tx.Bucket([]byte(w.Kind)).Get([]byte(w.Key)); old != nil && isSummed(w.Kind, w.Key) {
			_, seal, ok := unseal(w.Kind, w.Key, old)
			if !ok {
				return damaged(w.Kind, w.Key)
			}
			s.remove(w.Kind, seal)
		}
		if w.Value != nil && isSummed(w.Kind, w.Key) {
			s.add(w.Kind, sealOf(w.Kind, w.Key, w.Value))
		}
		if err := put(tx, w); err != nil {
			return err
		}
	}
	return putAll(tx, s, nil)
}

// putAll makes changes in one file, and writes the sums.
func putAll(tx *bolt.Tx, s sums, writes []rules.Record) error {
	for _, w := range append(slices.Clip(writes), rules.Record{Kind: inMeta, Key: keySums, Value: s.bytes(uint64(tx.ID()))}) {
		if err := put(tx, w); err != nil {
			return err
		}
	}
	return nil
}

func put(tx *bolt.Tx, w rules.Record) error {
	b := tx.Bucket([]byte(w.Kind))
	if w.Value == nil {
		return b.Delete([]byte(w.Key))
	}
	if isPlain(w.Kind, w.Key) {
		return b.Put([]byte(w.Key), w.Value)
	}
	if w.Kind == inLog {
		b.FillPercent = 1 // entries are only added at the end, so a full page stays full
	}
	return b.Put([]byte(w.Key), seal(w.Kind, w.Key, w.Value))
}

// damaged is the error for a record that cannot be read.
func damaged(bucket, key string) error {
	return fmt.Errorf("%s: record %s %q: %w", fileName, bucket, key, codec.ErrCorrupt)
}
