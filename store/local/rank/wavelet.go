package rank

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"mtagd/store/local/codec"
)

// A wavelet matrix holds a segment's events in the order of time, each as its rank in the order of names. It answers, for
// the events of any time range: how many of them have a rank below a limit, and which of them has the k-th lowest rank.
// Either takes two counts of bits in each of its levels.
//
// Level 0 has the highest bit of each rank, in the order of time. Each further level has the next bit, in the order of the
// level before, but with all ranks whose bit there was 0 before those whose bit was 1. (Claude, Navarro, Ordóñez: The
// wavelet matrix, 2015.) The last lowBits bits have no levels: behind the last level, the ranks that have all higher bits
// in common are neighbours, so few that their low bits are simply listed.
type wavelet struct {
	n      int // number of events; their ranks are 0 to n-1, each once
	blocks blocks
}

// blocks are the parts of a segment, by kind and number. A block is valid as long as the reader of the segment is.
type blocks interface {
	block(kind uint8, i int) ([]byte, error)
}

// Kinds of blocks. The wavelet matrix has the low bits of its ranks in kindLow, and each of its levels is a kind of its
// own, from kindWavelet on.
const (
	kindNames uint8 = iota
	kindTimes
	kindRanks
	kindLow
	kindWavelet
)

// waveletBits is how many bits of a level are in one block. A block and its key are then a little smaller than a page of
// bbolt.
const waveletBits = 32_000

const (
	lowBits     = 11
	lowPerBlock = 2000 // low bits in one block, 2 bytes each
)

// waveletLevels returns the number of levels for n events.
func waveletLevels(n int) int { return max(0, bits.Len(uint(max(0, n-1)))-lowBits) }

// buildWavelet passes the blocks of a wavelet matrix to put. It overwrites ranks.
func buildWavelet(ranks []uint32, put func(kind uint8, i int, b []byte) error) error {
	levels := waveletLevels(len(ranks))
	ones := make([]uint32, 0, len(ranks))
	block := make([]byte, 0, 4+waveletBits/8)
	for level := range levels {
		shift := levels - 1 - level + lowBits
		zeros := 0
		ones = ones[:0]
		for from := 0; from < len(ranks); from += waveletBits {
			to := min(from+waveletBits, len(ranks))
			block = binary.LittleEndian.AppendUint32(block[:0], uint32(len(ones)))
			for at := from; at < to; at += 64 {
				var word uint64
				for i, rank := range ranks[at:min(at+64, to)] {
					bit := rank >> shift & 1
					word |= uint64(bit) << i
					if bit == 0 {
						ranks[zeros] = rank // zeros never overtakes the loop
						zeros++
					} else {
						ones = append(ones, rank)
					}
				}
				block = binary.LittleEndian.AppendUint64(block, word)
			}
			if err := put(kindWavelet+uint8(level), from/waveletBits, block); err != nil {
				return err
			}
		}
		copy(ranks[zeros:], ones)
	}
	for from := 0; from < len(ranks); from += lowPerBlock {
		block = block[:0]
		for _, rank := range ranks[from:min(from+lowPerBlock, len(ranks))] {
			block = binary.LittleEndian.AppendUint16(block, uint16(rank&(1<<lowBits-1)))
		}
		if err := put(kindLow, from/lowPerBlock, block); err != nil {
			return err
		}
	}
	return nil
}

// below counts the events with from ≤ place in time < to that have a rank below limit.
func (w wavelet) below(from, to, limit int) (n int, err error) {
	if limit >= w.n {
		return to - from, nil
	}
	levels := waveletLevels(w.n)
	for level := 0; level < levels && from < to; level++ {
		shift := levels - 1 - level + lowBits
		onesFrom, onesTo, err := w.onesOf(level, from, to)
		if err != nil {
			return 0, err
		}
		if limit>>shift&1 == 0 {
			from, to = from-onesFrom, to-onesTo
			continue
		}
		n += to - onesTo - (from - onesFrom)
		zeros := w.zeros(level)
		from, to = zeros+onesFrom, zeros+onesTo
	}
	err = w.eachLow(from, to, func(low int) {
		if low < limit&(1<<lowBits-1) {
			n++
		}
	})
	return n, err
}

// walk calls yield with the ranks of the events with from ≤ place in time < to, in ascending order. It skips the first
// skip of them, and ends after left.
func (w wavelet) walk(from, to, skip, left int, yield func(rank int) error) error {
	return w.walkLevel(0, from, to, 0, &skip, &left, yield)
}

func (w wavelet) walkLevel(level, from, to, rank int, skip, left *int, yield func(rank int) error) error {
	switch {
	case *left == 0 || from == to:
		return nil
	case *skip >= to-from:
		*skip -= to - from
		return nil
	case level == waveletLevels(w.n):
		var low []int
		if err := w.eachLow(from, to, func(l int) { low = append(low, l) }); err != nil {
			return err
		}
		slices.Sort(low)
		for _, l := range low[*skip:min(*skip+*left, len(low))] {
			if err := yield(rank<<lowBits | l); err != nil {
				return err
			}
		}
		*left -= min(*left, len(low)-*skip)
		*skip = 0
		return nil
	}
	onesFrom, onesTo, err := w.onesOf(level, from, to)
	if err != nil {
		return err
	}
	if err := w.walkLevel(level+1, from-onesFrom, to-onesTo, rank<<1, skip, left, yield); err != nil {
		return err
	}
	zeros := w.zeros(level)
	return w.walkLevel(level+1, zeros+onesFrom, zeros+onesTo, rank<<1|1, skip, left, yield)
}

// zeros returns how many zeros a level has: as many as of the numbers 0 to n-1 have a 0 as this bit.
func (w wavelet) zeros(level int) int {
	shift := waveletLevels(w.n) - 1 - level + lowBits
	return w.n>>(shift+1)<<shift + min(w.n&(1<<(shift+1)-1), 1<<shift)
}

// eachLow calls use with the low bits of the ranks at these places behind the last level.
func (w wavelet) eachLow(from, to int, use func(low int)) error {
	for from < to {
		at, i := from/lowPerBlock, from%lowPerBlock
		b, err := w.blocks.block(kindLow, at)
		if err != nil {
			return err
		}
		end := min(lowPerBlock, i+to-from)
		if len(b) < 2*end {
			return errWavelet
		}
		for b = b[2*i : 2*end]; len(b) > 0; b = b[2:] {
			use(int(binary.LittleEndian.Uint16(b)))
		}
		from += end - i
	}
	return nil
}

// onesOf counts the ones of a level before from, and before to; from < to.
func (w wavelet) onesOf(level, from, to int) (onesFrom, onesTo int, err error) {
	at, end := from/waveletBits, (to-1)/waveletBits
	b, err := w.bits(level, at, min(waveletBits, to-at*waveletBits))
	if err != nil {
		return 0, 0, err
	}
	onesFrom = onesBefore(b, from-at*waveletBits)
	if end != at {
		if b, err = w.bits(level, end, to-end*waveletBits); err != nil {
			return 0, 0, err
		}
	}
	onesTo = onesBefore(b, to-end*waveletBits)
	zeros := w.zeros(level)
	if onesFrom > onesTo || onesFrom > from || onesTo > to || zeros+onesTo > w.n || to-onesTo < from-onesFrom {
		return 0, 0, errWavelet
	}
	return onesFrom, onesTo, nil
}

// onesBefore counts the ones of a level before a bit of this block.
func onesBefore(block []byte, bit int) int {
	n := int(binary.LittleEndian.Uint32(block))
	words := block[4:]
	for ; bit >= 64; bit -= 64 {
		n += bits.OnesCount64(binary.LittleEndian.Uint64(words))
		words = words[8:]
	}
	if bit > 0 {
		n += bits.OnesCount64(binary.LittleEndian.Uint64(words) << (64 - bit))
	}
	return n
}

// bits returns a block of a level that has at least n bits.
func (w wavelet) bits(level, at, n int) ([]byte, error) {
	b, err := w.blocks.block(kindWavelet+uint8(level), at)
	if err == nil && len(b) < 4+(n+63)/64*8 {
		err = errWavelet
	}
	return b, err
}

var errWavelet = fmt.Errorf("%w: wavelet matrix", codec.ErrCorrupt)
