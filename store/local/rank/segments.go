package rank

import (
	"cmp"
	"slices"
)

// Every commit with events of overflow series makes new segments in memory, and every merge makes new stored ones. They
// are compacted: small segments are merged into larger ones, so that a query reads few. In memory, the applying goroutine
// does this. Stored segments are compacted by a goroutine of its own, in many small transactions, so that a merge does not
// wait for it.

// How many events a segment may have. Compacting takes 12 bytes of memory for each of them. Their ranks must fit in 3 bytes.
const (
	maxMemorySegment = 1 << 15
	maxStoredSegment = 1 << 22
)

// compactionDue returns the segments to merge next; none when there are few enough. The goal: each segment of a tag is more
// than twice as large as all smaller ones together. So the number of segments grows with the logarithm of the number of
// events, and so does the number of times that each event is rewritten. A segment that has lost most of its events to
// removals is rewritten alone.
func compactionDue(segments []*segment, limit int) []*segment {
	byTag := map[uint32][]*segment{}
	for _, s := range segments {
		if s.n-s.removed < s.n/2 && s.n-s.removed <= limit {
			return []*segment{s}
		}
		byTag[s.tag] = append(byTag[s.tag], s)
	}
	for _, group := range byTag {
		slices.SortFunc(group, func(a, b *segment) int { return cmp.Compare(a.n, b.n) })
		n, smaller := 0, 0 // n: how many to merge
		for i, s := range group {
			if smaller+s.n > limit {
				break
			}
			if s.n <= 2*smaller {
				n = i + 1
			}
			smaller += s.n
		}
		if n > 1 {
			return group[:n]
		}
	}
	return nil
}

// mergedSegment returns the segment that is the result of merging these.
func mergedSegment(from []*segment) *segment {
	merged := &segment{tag: from[0].tag}
	for _, s := range from {
		merged.n += s.n - s.removed
	}
	return merged
}

// replaceSegments returns the segments, with merged in place of the segments in from.
func replaceSegments(segments, from []*segment, merged *segment) []*segment {
	return append(slices.DeleteFunc(slices.Clone(segments), func(s *segment) bool {
		return slices.ContainsFunc(from, func(f *segment) bool { return f == s || s.id != 0 && f.id == s.id })
	}), merged)
}

// addToMemory adds events of overflow series to a merchant's segments in memory. It returns the new segments, and does not
// change the old ones, as they may be read meanwhile.
func addToMemory(segments []*segment, events []named) (_ []*segment, err error) {
	segments = slices.Clone(segments)
	byTag := map[uint32][]named{}
	for _, e := range events {
		byTag[e.series] = append(byTag[e.series], e)
	}
	for tag, events := range byTag {
		var b memoryBlocks
		if err := buildSegment(events, b.put); err != nil {
			return nil, err
		}
		segments = append(segments, &segment{n: len(events), tag: tag, blocks: b})
	}
	for {
		from := compactionDue(segments, maxMemorySegment)
		if from == nil {
			return segments, nil
		}
		var b memoryBlocks
		merged := mergedSegment(from)
		if merged.n, err = mergeSegments(memoryReaders(from), b.put); err != nil {
			return nil, err
		}
		merged.blocks = b
		segments = replaceSegments(segments, from, merged)
	}
}

func memoryReaders(segments []*segment) (readers []*segmentReader) {
	for _, s := range segments {
		readers = append(readers, newSegmentReader(s, s.blocks))
	}
	return readers
}
