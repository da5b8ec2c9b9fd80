package rank

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"sort"

	"mtagd/store/local/codec"
)

// putBlock stores a block of a segment that is being written. The blocks of a kind come in ascending order. b is valid
// until putBlock returns.
type putBlock func(kind uint8, i int, b []byte) error

// buildSegment writes a segment of these events. It sorts them.
func buildSegment(events []named, put putBlock) error {
	slices.SortFunc(events, func(a, b named) int { return a.compare(&b) })
	names := newNameWriter(put)
	for i := range events {
		if err := names.add(&events[i]); err != nil {
			return err
		}
	}
	if err := names.flush(); err != nil {
		return err
	}
	ranks := make([]uint32, len(events))
	for i := range ranks {
		ranks[i] = uint32(i)
	}
	slices.SortFunc(ranks, func(a, b uint32) int { return events[a].Key.compare(events[b].Key) })
	times := newTimeWriter(put)
	for _, rank := range ranks {
		if err := times.add(events[rank].Time); err != nil {
			return err
		}
	}
	if err := times.flush(); err != nil {
		return err
	}
	return writeRanks(ranks, put)
}

// mergeSegments writes a segment that has the events of all the given ones, which have no event in common. It leaves out
// the removed events, and returns how many it has written. Besides single blocks it keeps about 12 bytes an event in memory:
//
//  1. Merge the names, and note the new rank of each event by its old one.
//  2. Replace the old ranks, in the order of time, by the new ones.
//  3. Merge the times, and put the new ranks in the same order.
//  4. Write these, and their wavelet matrix.
func mergeSegments(from []*segmentReader, put putBlock) (written int, err error) {
	n := 0
	ranks := make([][]uint32, len(from)) // of each segment: the new ranks by the old ones, then the new ranks in the order of time
	for i, s := range from {
		n += s.n
		ranks[i] = make([]uint32, 0, s.n)
	}
	if err := mergeNames(from, ranks, put); err != nil {
		return 0, err
	}
	for i, s := range from {
		old, err := s.ranks(0, s.n)
		if err != nil {
			return 0, err
		}
		for at, rank := range old {
			old[at] = ranks[i][rank]
		}
		ranks[i] = old
	}
	merged, err := mergeTimes(from, ranks, n, put)
	if err != nil {
		return 0, err
	}
	clear(ranks) // frees memory for the wavelet matrix
	return len(merged), writeRanks(merged, put)
}

// removedRank is the new rank of a removed event.
const removedRank = math.MaxUint32

// mergeNames writes the names of all segments. It appends the new rank of each event to ranks, in the order of the old.
func mergeNames(from []*segmentReader, ranks [][]uint32, put putBlock) error {
	var sources []*mergeSource[named]
	for i, s := range from {
		sources = append(sources, &mergeSource[named]{number: i, n: s.n, read: func(at int) ([]named, int, error) {
			block, err := s.names(at / namesPerBlock)
			return block, at % namesPerBlock, err
		}})
	}
	w := newNameWriter(put)
	rank := uint32(0)
	if err := mergeSorted(sources, (*named).compare, func(source int, e *named) error {
		if from[source].isRemoved(e) {
			ranks[source] = append(ranks[source], removedRank)
			return nil
		}
		ranks[source] = append(ranks[source], rank)
		rank++
		return w.add(e)
	}); err != nil {
		return err
	}
	return w.flush()
}

// mergeTimes writes the times of all segments. It returns the new ranks in the order of time. The order of events with
// equal times does not matter.
func mergeTimes(from []*segmentReader, ranks [][]uint32, n int, put putBlock) ([]uint32, error) {
	merged := make([]uint32, 0, n)
	var sources []*mergeSource[int64]
	for i, s := range from {
		var block []int64
		sources = append(sources, &mergeSource[int64]{number: i, n: s.n, read: func(at int) (_ []int64, _ int, err error) {
			block, err = s.times(block[:0], at/timesPerBlock)
			return block, at % timesPerBlock, err
		}})
	}
	w := newTimeWriter(put)
	next := make([]int, len(from))
	compare := func(a, b *int64) int { return cmp.Compare(*a, *b) }
	if err := mergeSorted(sources, compare, func(source int, t *int64) error {
		rank := ranks[source][next[source]]
		next[source]++
		if rank == removedRank {
			return nil
		}
		merged = append(merged, rank)
		return w.add(*t)
	}); err != nil {
		return nil, err
	}
	return merged, w.flush()
}

// mergeSource is n sorted items, which are read block by block.
type mergeSource[T any] struct {
	number int // for the caller's use
	n      int
	read   func(at int) (block []T, first int, err error) // the block with the item at, and the place of that item in it

	at    int // place of the next item
	block []T // items from the next one on
}

// fill reads the next block when the previous one is used up. It reports whether there is an item.
func (s *mergeSource[T]) fill() (ok bool, err error) {
	if len(s.block) > 0 || s.at == s.n {
		return s.at < s.n, nil
	}
	block, first, err := s.read(s.at)
	if err != nil {
		return false, err
	}
	s.block = block[first:]
	return true, nil
}

// mergeSorted calls use with the items of all sources, in order.
func mergeSorted[T any](sources []*mergeSource[T], compare func(a, b *T) int, use func(source int, item *T) error) error {
	var order []*mergeSource[T] // sorted by their next items
	insert := func(s *mergeSource[T]) error {
		ok, err := s.fill()
		if err != nil || !ok {
			return err
		}
		i := sort.Search(len(order), func(i int) bool { return compare(&order[i].block[0], &s.block[0]) > 0 })
		order = slices.Insert(order, i, s)
		return nil
	}
	for _, s := range sources {
		if err := insert(s); err != nil {
			return err
		}
	}
	for len(order) > 0 {
		s := order[0]
		if err := use(s.number, &s.block[0]); err != nil {
			return err
		}
		s.at, s.block = s.at+1, s.block[1:]
		if len(s.block) > 0 && (len(order) == 1 || compare(&s.block[0], &order[1].block[0]) <= 0) {
			continue // the common case
		}
		order = slices.Delete(order, 0, 1)
		if err := insert(s); err != nil {
			return err
		}
	}
	return nil
}

// blockWriter collects the items of a block, and writes it when it is full.
type blockWriter struct {
	put      putBlock
	kind     uint8
	perBlock int
	written  int
	b        []byte
	n        int // number of items in the open block
}

// next makes room for an item. It reports whether the item is the first of a block.
func (w *blockWriter) next() (first bool, err error) {
	if w.n == w.perBlock {
		err = w.flush()
	}
	w.n++
	return w.n == 1, err
}

// flush writes the open block.
func (w *blockWriter) flush() error {
	if w.n == 0 {
		return nil
	}
	err := w.put(w.kind, w.written, w.b)
	w.b, w.n = w.b[:0], 0
	w.written++
	return err
}

// nameWriter writes the names of a segment.
type nameWriter struct {
	blockWriter
	last named // the last item of the open block
}

func newNameWriter(put putBlock) *nameWriter {
	return &nameWriter{blockWriter: blockWriter{put: put, kind: kindNames, perBlock: namesPerBlock}}
}

func (w *nameWriter) add(e *named) error {
	first, err := w.next()
	if first {
		w.last = named{}
	}
	shared := 0
	for shared < min(len(e.name), len(w.last.name)) && e.name[shared] == w.last.name[shared] {
		shared++
	}
	w.b = binary.AppendUvarint(w.b, uint64(shared))
	w.b = codec.AppendPrefixed(w.b, e.name[shared:])
	w.b = appendKey(w.b, &w.last.Key, e.Key)
	w.b = binary.AppendUvarint(w.b, uint64(e.series))
	w.last.name = e.name
	return err
}

// timeWriter writes the times of a segment.
type timeWriter struct {
	blockWriter
	last int64 // the last item of the open block
}

func newTimeWriter(put putBlock) *timeWriter {
	return &timeWriter{blockWriter: blockWriter{put: put, kind: kindTimes, perBlock: timesPerBlock}}
}

func (w *timeWriter) add(t int64) error {
	first, err := w.next()
	if first {
		w.last = 0
	}
	w.b = binary.AppendVarint(w.b, t-w.last)
	w.last = t
	return err
}

// writeRanks writes the ranks of a segment's events, which are in the order of time, and their wavelet matrix. It
// overwrites ranks.
func writeRanks(ranks []uint32, put putBlock) error {
	b := make([]byte, 0, 3*ranksPerBlock)
	i := 0
	for block := range slices.Chunk(ranks, ranksPerBlock) {
		b = b[:0]
		for _, rank := range block {
			b = append(b, byte(rank), byte(rank>>8), byte(rank>>16))
		}
		if err := put(kindRanks, i, b); err != nil {
			return err
		}
		i++
	}
	return buildWavelet(ranks, put)
}
