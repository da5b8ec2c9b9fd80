package journal

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/local/log"
)

// chunks are those of the log that were not forgotten, in the order of receipt. The newest are in memory: to read them needs
// no file.
type chunks struct {
	log *log.Log

	mu     sync.RWMutex
	list   []stored // replaced, or appended to: a reader keeps what it has
	held   int      // bytes of chunks in memory
	onDisk int      // the first ones, which are only in the log
}

// stored is a chunk.
type stored struct {
	seq, version uint64
	at           log.Position // of the record
	from, to     int          // where the packed chunk is in the record
	events       int          // 0: unknown, because the chunk was read at the start
	record       *heldRecord  // nil: the chunk is from before the start, and only in the log
	merchants    []uint32     // hashOf the merchants with events in it; nil for chunks from before the start
}

// heldRecord is a record in memory. It points to nil when the record is only in the log.
type heldRecord = atomic.Pointer[[]byte]

// packed returns the chunk as it is stored; nil when it is only in the log.
func (s *stored) packed() []byte {
	if s.record != nil {
		if record := s.record.Load(); record != nil {
			return (*record)[s.from:s.to:s.to]
		}
	}
	return nil
}

// MerchantSet is the merchants whose chunks are read, as hashes; nil: all. A few other merchants may have the same hashes.
type MerchantSet map[uint32]struct{}

// NewMerchantSet returns a set of merchants.
func NewMerchantSet(merchants ...store.MerchantKey) MerchantSet {
	set := make(MerchantSet, len(merchants))
	for _, m := range merchants {
		set[hashOf(m)] = struct{}{}
	}
	return set
}

func hashOf(m store.MerchantKey) uint32 { return binary.BigEndian.Uint32(m[len(m)-4:]) } // the id is random

// mayHave reports whether a chunk may have events of a merchant.
func (s *stored) mayHave(of MerchantSet) bool {
	return of == nil || s.merchants == nil || slices.ContainsFunc(s.merchants, func(hash uint32) bool { _, has := of[hash]; return has })
}

// maxHeld is how many bytes of chunks are in memory, as stored. There are so
// many only while the archive cannot keep up.
const maxHeld = 24 << 20

// add adds the chunks of a record, and does not keep the slice. The record in memory must not change.
func (c *chunks) add(added []stored) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.list)+len(added) > cap(c.list) {
		c.list = slices.Grow(c.list, max(len(c.list)/2, len(added))) // append would copy a long list more often
	}
	c.list = append(c.list, added...)
	for i := range added {
		c.held += len(added[i].packed())
	}
	if c.held <= maxHeld {
		return
	}
	for c.held > maxHeld/2 && c.onDisk < len(c.list) {
		record := c.list[c.onDisk].record
		for ; c.onDisk < len(c.list) && c.list[c.onDisk].record == record; c.onDisk++ {
			c.held -= len(c.list[c.onDisk].packed())
		}
		if record != nil {
			record.Store(nil)
		}
	}
}

// between returns the chunks after seq, up to and including last.
func (c *chunks) between(seq, last uint64) []stored {
	c.mu.RLock()
	defer c.mu.RUnlock()
	from, to := search(c.list, seq+1), len(c.list)
	if last < ^uint64(0) {
		to = search(c.list, last+1)
	}
	return c.list[from:max(from, to):max(from, to)]
}

// search returns the index of the first chunk with this number or a greater one.
func search(list []stored, seq uint64) int {
	n, _ := slices.BinarySearchFunc(list, seq, func(s stored, seq uint64) int { return cmp.Compare(s.seq, seq) })
	return n
}

// find returns the chunk with a number.
func (c *chunks) find(seq uint64) (stored, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	n := search(c.list, seq)
	if n == len(c.list) || c.list[n].seq != seq {
		return stored{}, false
	}
	return c.list[n], true
}

// last returns the number of the last chunk of the commits up to a version; 0 when there is none.
func (c *chunks) last(version uint64) uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	n, _ := slices.BinarySearchFunc(c.list, version, func(s stored, version uint64) int {
		if s.version <= version {
			return -1
		}
		return 1
	})
	if n == 0 {
		return 0
	}
	return c.list[n-1].seq
}

// count returns how many events these chunks have. It unpacks those that were read at the start.
func (c *chunks) count(of []stored) (events int, err error) {
	r := reader{chunks: c}
	for _, s := range of {
		events += s.events
		if s.events == 0 {
			unpacked, err := r.read(s)
			if err != nil {
				return 0, DamagedChunks{{s.seq, err}}
			}
			events += len(unpacked)
		}
	}
	return events, nil
}

// forget drops the chunks up to a number.
func (c *chunks) forget(last uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := search(c.list, last+1)
	held := c.held
	for i := range c.list[:n] {
		c.held -= len(c.list[i].packed())
	}
	c.onDisk = max(0, c.onDisk-n)
	if c.list = c.list[n:]; c.held < held || n >= len(c.list) {
		c.list = append([]stored(nil), c.list...) // so that the forgotten ones are garbage; a long list is copied when it grows
	}
}

// first returns the position of the first record with a chunk; end when there is none.
func (c *chunks) first(end log.Position) log.Position {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if len(c.list) == 0 {
		return end
	}
	return c.list[0].at
}

// reader unpacks one chunk after the other into the same memory.
type reader struct {
	chunks *chunks

	record []byte       // the last one that was read
	at     log.Position // its position
	data   []byte
	events []Event
}

// packed returns a chunk as it is stored. It is valid until the next call.
func (r *reader) packed(s stored) (packed []byte, err error) {
	if packed = s.packed(); packed != nil {
		return packed, nil
	}
	if r.record == nil || r.at != s.at {
		if r.record, err = r.chunks.log.Read(s.at, r.record); err != nil {
			r.record = nil
			return nil, err
		}
		r.at = s.at
	}
	return r.record[s.from:s.to], nil
}

// unpack returns a chunk. It is valid until the next call.
func (r *reader) unpack(s stored) (chunk []byte, err error) {
	packed, err := r.packed(s)
	if err == nil {
		r.data, err = unpackChunk(r.data, packed)
	}
	return r.data, err
}

// read decodes all events of a chunk. They are valid until the next call.
func (r *reader) read(s stored) ([]Event, error) {
	chunk, err := r.unpack(s)
	if err != nil {
		return nil, err
	}
	r.events = r.events[:0]
	d := codec.Decoder{B: chunk}
	for i := 0; len(d.B) > 0; i++ {
		r.events = append(r.events, decodeEvent(&d, store.Position{Seq: s.seq, Index: uint16(i)}))
		if err := d.Err("chunk"); err != nil {
			return nil, err
		}
	}
	return r.events, nil
}
