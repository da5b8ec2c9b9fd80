package rank

import (
	"cmp"
	"fmt"
	"math"
	"sort"
	"strings"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// Events of overflow series are in the counted trees like all others, but there without their names. A segment has some
// of these events once more, in the order of names. It never changes. It has four parts, each cut into blocks:
//
//   - The names: its events, sorted by name, equal names by Key. An event's place in this order is its rank.
//   - The times of its events, sorted.
//   - The rank of each event, in the order of time.
//   - A wavelet matrix of these ranks (wavelet.go).
//
// So a segment counts its events below any name within any time range, and finds the k-th of them. The cost grows with
// the logarithm of the number of its events, whatever their names are. For a time range with few events, reading and
// sorting their ranks is faster than the wavelet matrix, which reads a block of each level for each event.
//
// All events of a segment belong to one overflow series, so a query reads only the segments of its tags.
type segment struct {
	id  uint64 // of a stored segment
	n   int    // number of events
	tag uint32 // the overflow series of its events

	removed int   // how many of its events are removed: all those before start
	start   int64 // µs since 1970

	blocks blocks // of a segment in memory; nil when it is stored
}

// named is an event with its name.
type named struct {
	name string
	entry
}

// compare orders by name, equal names by Key.
func (e *named) compare(o *named) int {
	return cmp.Or(strings.Compare(e.name, o.name), e.Key.compare(o.Key))
}

// How many events the blocks of each kind have; the last block of a kind may have fewer.
const (
	namesPerBlock = 64
	timesPerBlock = 1024
	ranksPerBlock = 1300 // 3 bytes each; a block and its key are a little smaller than a page of bbolt
)

// memoryBlocks are the blocks of a segment in memory, by kind and number.
type memoryBlocks [][][]byte

func (m *memoryBlocks) put(kind uint8, _ int, b []byte) error {
	for int(kind) >= len(*m) {
		*m = append(*m, nil)
	}
	(*m)[kind] = append((*m)[kind], append([]byte(nil), b...))
	return nil
}

func (m memoryBlocks) block(kind uint8, i int) ([]byte, error) {
	if int(kind) >= len(m) || i >= len(m[kind]) {
		return nil, fmt.Errorf("%w: no block %d of kind %d", codec.ErrCorrupt, i, kind)
	}
	return m[kind][i], nil
}

// segmentReader reads a segment.
type segmentReader struct {
	*segment
	blocks blocks

	without map[Key]bool // further events that count as removed

	decoded   []named // the names block that was decoded last
	decodedAt int     // its number
}

func newSegmentReader(s *segment, b blocks) *segmentReader {
	return &segmentReader{segment: s, blocks: b, decodedAt: -1}
}

// isRemoved reports whether an event of the segment is removed.
func (s *segmentReader) isRemoved(e *named) bool {
	return s.removed > 0 && e.Time < s.start || s.without[e.Key]
}

// from returns the lower bound of a time range, without removed events.
func (s *segmentReader) from(lo Key) Key {
	if s.removed > 0 && lo.Time < s.start {
		return Key{Time: s.start}
	}
	return lo
}

func (s *segmentReader) wavelet() wavelet { return wavelet{s.n, s.blocks} }

// names returns a block of names. It is valid until the next call.
func (s *segmentReader) names(at int) ([]named, error) {
	if at == s.decodedAt {
		return s.decoded, nil
	}
	b, err := s.blocks.block(kindNames, at)
	if err != nil {
		return nil, err
	}
	s.decoded, s.decodedAt = s.decoded[:0], -1
	last := ""
	if err := eachName(b, s.inBlock(at), func(name []byte, e entry) {
		if string(name) != last { // an equal name shares the memory of the last one
			last = string(name)
		}
		s.decoded = append(s.decoded, named{last, e})
	}); err != nil {
		return nil, err
	}
	s.decodedAt = at
	return s.decoded, nil
}

// event returns the event with a rank.
func (s *segmentReader) event(rank int) (named, error) {
	at, i := rank/namesPerBlock, rank%namesPerBlock
	if at == s.decodedAt {
		return s.decoded[i], nil
	}
	b, err := s.blocks.block(kindNames, at)
	if err != nil {
		return named{}, err
	}
	var found named
	err = eachName(b, i+1, func(name []byte, e entry) {
		if i--; i < 0 {
			found = named{string(name), e}
		}
	})
	return found, err
}

// inBlock returns the number of names in a block.
func (s *segmentReader) inBlock(at int) int { return min(namesPerBlock, s.n-at*namesPerBlock) }

// blockOf returns the number of the block where an item belongs: the first block whose successor begins after the item.
func (s *segmentReader) blockOf(kind uint8, perBlock int, isBehind func(b []byte) (bool, error)) (at int, err error) {
	at = sort.Search((s.n-1)/perBlock, func(i int) bool {
		if err != nil {
			return true
		}
		var b []byte
		behind := true
		if b, err = s.blocks.block(kind, i+1); err == nil {
			behind, err = isBehind(b)
		}
		return behind
	})
	return at, err
}

// rank counts the events that are less than k.
func (s *segmentReader) rank(k *named) (int, error) {
	if s.n == 0 {
		return 0, nil
	}
	at, err := s.blockOf(kindNames, namesPerBlock, func(b []byte) (bool, error) {
		d := codec.Decoder{B: b}
		d.Uvarint()
		name, key := d.Prefixed(), decodeKey(&d, &Key{})
		if string(name) != k.name {
			return string(name) > k.name, d.Err("names")
		}
		return key.compare(k.Key) >= 0, d.Err("names")
	})
	if err != nil {
		return 0, err
	}
	block, err := s.names(at)
	if err != nil {
		return 0, err
	}
	return at*namesPerBlock + sort.Search(len(block), func(i int) bool { return block[i].compare(k) >= 0 }), nil
}

// rankFrom is rank for a k that at least from events are less than. It is fast when few more are.
func (s *segmentReader) rankFrom(from int, k *named) (int, error) {
	if from == s.n {
		return from, nil
	}
	block, err := s.names(from / namesPerBlock)
	if err != nil {
		return 0, err
	}
	if block[len(block)-1].compare(k) < 0 {
		return s.rank(k)
	}
	return from - from%namesPerBlock + sort.Search(len(block), func(i int) bool { return block[i].compare(k) >= 0 }), nil
}

// before counts the events before a time.
func (s *segmentReader) before(time int64) (int, error) {
	if time == math.MinInt64 || s.n == 0 {
		return 0, nil
	}
	if time == math.MaxInt64 {
		return s.n, nil
	}
	at, err := s.blockOf(kindTimes, timesPerBlock, func(b []byte) (bool, error) {
		d := codec.Decoder{B: b}
		return d.Varint() >= time, d.Err("times")
	})
	if err != nil {
		return 0, err
	}
	b, err := s.blocks.block(kindTimes, at)
	if err != nil {
		return 0, err
	}
	d, t, n := codec.Decoder{B: b}, int64(0), at*timesPerBlock
	for range min(timesPerBlock, s.n-n) {
		if t += d.Varint(); t >= time {
			break
		}
		n++
	}
	return n, d.Err("times")
}

// window returns the range of indexes, in the order of time, of a time range's events, without removed ones.
func (s *segmentReader) window(lo, hi int64) (from, to int, err error) {
	if from, err = s.before(s.from(Key{Time: lo}).Time); err != nil {
		return 0, 0, err
	}
	to, err = s.before(hi)
	return from, max(from, to), err // from is after the range when all its events are removed
}

// times appends the times of a block.
func (s *segmentReader) times(times []int64, at int) ([]int64, error) {
	b, err := s.blocks.block(kindTimes, at)
	if err != nil {
		return nil, err
	}
	d := codec.Decoder{B: b}
	t := int64(0)
	for range min(timesPerBlock, s.n-at*timesPerBlock) {
		t += d.Varint()
		times = append(times, t)
	}
	return times, d.Err("times")
}

// ranks returns the ranks of the events with from ≤ place in time < to, in the order of time.
func (s *segmentReader) ranks(from, to int) ([]uint32, error) {
	ranks := make([]uint32, 0, to-from)
	for from < to {
		at, i := from/ranksPerBlock, from%ranksPerBlock
		b, err := s.blocks.block(kindRanks, at)
		if err != nil {
			return nil, err
		}
		end := min(ranksPerBlock, i+to-from)
		if len(b) < 3*end {
			return nil, errRanks
		}
		for b = b[3*i : 3*end]; len(b) > 0; b = b[3:] {
			rank := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16
			if int(rank) >= s.n {
				return nil, errRanks
			}
			ranks = append(ranks, rank)
		}
		from += end - i
	}
	return ranks, nil
}

var errRanks = fmt.Errorf("%w: ranks", codec.ErrCorrupt)

// eachName calls use with each of the first n events of a block of names. name is valid until use returns.
func eachName(b []byte, n int, use func(name []byte, e entry)) error {
	d := codec.Decoder{B: b}
	name := make([]byte, 0, store.MaxEventNameLength)
	var prev Key
	for range n {
		shared, rest := d.Uvarint(), d.Prefixed()
		if shared > uint64(len(name)) {
			d.Fail()
			break
		}
		name = append(name[:shared], rest...)
		e := entry{Key: decodeKey(&d, &prev), series: uint32(d.Uvarint())}
		if err := d.Err("names"); err != nil {
			return err
		}
		use(name, e)
	}
	return d.Err("names")
}
