package journal

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"strconv"
)

// A log of Badger is a header of logHeader bytes, and records:
//
//	meta (1) | user meta (1) | sizes of key and value, expiry (uvarints) | key | value | CRC-32C (4, big endian)
//
// A key ends with the bitwise complement of its commit timestamp (8, big endian). In the log of a memtable the records of
// a transaction follow each other, and the last one is a finish marker. The rest of the file is zeros.

// logHeader is the size in bytes of a log's header: the id of its encryption key (8 bytes; 0, as the journal has none), and
// an initialisation vector.
const logHeader = 8 + 12

const (
	metaPointer = 1 << 1 // the value is in a value log; the record has its place
	metaTxn     = 1 << 6 // in the log of a memtable, every record has this bit, or
	metaFinish  = 1 << 7 // this one: the finish marker

	maxLogHeader = 22 // of a record
)

// logRecord is a record of a memtable's log.
type logRecord struct {
	bytes    []byte // all of it
	pointer  *valuePointer
	commit   uint64
	isFinish bool
}

// parseRecord returns the first record of b. It reports false when that is not sound.
func parseRecord(b []byte) (r logRecord, ok bool) {
	key, size, ok := recordSize(b)
	if !ok || b[0]&(metaTxn|metaFinish) == 0 {
		return logRecord{}, false
	}
	end := size - crc32.Size
	if crc32.Checksum(b[:end], castagnoli) != binary.BigEndian.Uint32(b[end:]) {
		return logRecord{}, false
	}
	r = logRecord{
		bytes:    b[:size],
		commit:   math.MaxUint64 - binary.BigEndian.Uint64(key[len(key)-8:]),
		isFinish: b[0]&metaFinish != 0,
	}
	if p := b[end-min(end, 12) : end]; b[0]&metaPointer != 0 && len(p) == 12 {
		r.pointer = &valuePointer{
			file: binary.NativeEndian.Uint32(p), size: binary.NativeEndian.Uint32(p[4:]), at: binary.NativeEndian.Uint32(p[8:]),
		}
	}
	return r, true
}

// valuePointer is the place of a record in a value log.
type valuePointer struct{ file, size, at uint32 }

// recordSize reads the header of a record, and returns its key and its size.
func recordSize(b []byte) (key []byte, size int, ok bool) {
	if len(b) < 2 {
		return nil, 0, false
	}
	at := 2
	var sizes [3]uint64 // the third one is the expiry
	for i := range sizes {
		v, n := binary.Uvarint(b[at:])
		if n <= 0 {
			return nil, 0, false
		}
		sizes[i], at = v, at+n
	}
	if sizes[0] <= 8 || sizes[0] > math.MaxUint16 || sizes[1] > math.MaxUint32 {
		return nil, 0, false
	}
	size = at + int(sizes[0]+sizes[1]) + crc32.Size
	if size > len(b) {
		return nil, 0, false
	}
	return b[at:][:sizes[0]], size, true
}

// correctRecord corrects a single wrong bit in the first record of b.
func correctRecord(b []byte) bool {
	sound := func() bool { _, ok := parseRecord(b); return ok }
	if tryBits(b[:min(len(b), maxLogHeader)], sound) {
		return true
	}
	_, size, ok := recordSize(b)
	if !ok {
		return false
	}
	data, sum := b[:size-crc32.Size], b[size-crc32.Size:size]
	return tryBits(sum, sound) || correctBit(data, binary.BigEndian.Uint32(sum)) && sound()
}

// lastTransaction returns the records of the last transaction.
func (l memLog) lastTransaction() []logRecord {
	for i := len(l.records); i > 0; i-- {
		if l.records[i-1].commit != l.records[len(l.records)-1].commit {
			return l.records[i:]
		}
	}
	return l.records
}

// memLog is what the log of a memtable has.
type memLog struct {
	records   []logRecord
	corrected bool // wrong bits were corrected
	damage    []gap
}

// gap is a part of a log that cannot be read. after is the number of records before it.
type gap struct {
	from, to int
	after    int
}

// readMemLog reads the records of a log, and corrects wrong bits in b. Behind damage it looks for the next sound record.
func readMemLog(b []byte) (l memLog) {
	end := usedLength(b)
	for at := logHeader; at < end; {
		r, ok := parseRecord(b[at:])
		if !ok && correctRecord(b[at:]) {
			l.corrected = true
			r, ok = parseRecord(b[at:])
		}
		if ok {
			// A checksum may end in zeros.
			l.records = append(l.records, r)
			at += len(r.bytes)
			continue
		}
		next := at + 1
		for ; next < end; next++ {
			if _, ok := parseRecord(b[next:]); ok {
				break
			}
		}
		l.damage = append(l.damage, gap{from: at, to: next, after: len(l.records)})
		at = next
	}
	return l
}

// survivors returns the records of a log which Badger must replay, in complete transactions, and how many bytes of
// acknowledged transactions are lost. Without damage these are all transactions that have a finish marker.
//
// Damage must be told from a torn end, which is the last transaction, not acknowledged, of which the disk has only some
// sectors. So of transactions before the last one all sound records survive. The last transaction survives when it has a
// finish marker, unless a sector of it is missing.
func (l memLog) survivors(b []byte) (records []byte, lost int) {
	for start := 0; start < len(l.records); {
		end := start
		for end < len(l.records) && l.records[end].commit == l.records[start].commit {
			end++
		}
		finished, torn := l.records[end-1].isFinish, false
		for _, g := range l.damage {
			if g.after < start || g.after > end || g.after == end && finished || g.after == start && start > 0 && !l.records[start-1].isFinish {
				continue
			}
			torn = torn || hasEmptySector(b[g.from:g.to], g.from)
			if end < len(l.records) || finished && !torn {
				lost += g.to - g.from
			}
		}
		if end < len(l.records) || finished && !torn {
			for _, r := range l.records[start:end] {
				records = append(records, r.bytes...)
			}
			if !finished {
				records = appendFinish(records, l.records[start].commit)
			}
		}
		start = end
	}
	return records, lost
}

// sectorSize is what disks write as a whole.
const sectorSize = 512

// hasEmptySector reports whether the part of a sector that is in b is zero, as logs are before they are written. b begins
// at this byte of the file. Parts of a few bytes do not count.
func hasEmptySector(b []byte, at int) bool {
	for len(b) > 0 {
		n := min(len(b), sectorSize-at%sectorSize)
		if n >= 16 && isZero(b[:n]) {
			return true
		}
		b, at = b[n:], at+n
	}
	return false
}

// appendFinish appends the finish marker of a transaction.
func appendFinish(b []byte, commit uint64) []byte {
	const name = "!badger!txn"
	value := strconv.FormatUint(commit, 10)
	start := len(b)
	b = append(b, metaFinish, 0)
	b = binary.AppendUvarint(b, uint64(len(name)+8))
	b = binary.AppendUvarint(b, uint64(len(value)))
	b = binary.AppendUvarint(b, 0)
	b = append(b, name...)
	b = binary.BigEndian.AppendUint64(b, math.MaxUint64-commit)
	b = append(b, value...)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}
