package read

import (
	"time"

	"mtagd/store/postgres/control"
	"mtagd/store/postgres/count"
)

// rawLevel is the level of spans whose events are counted one by one.
const rawLevel = count.ByMinute - 1

// span is a range of time (µs since 1970), from lo to before hi. At a level of the counters it begins and ends with a
// bucket.
type span struct {
	level  int
	lo, hi int64
}

// buckets returns the numbers of the span's first bucket, and of the one after its last.
func (s span) buckets() (first, end int64) {
	if s.level == count.ByLife {
		return 0, 1
	}
	return count.BucketOf(s.level, s.lo), count.BucketOf(s.level, s.hi)
}

// isBucket reports whether a span has one bucket of its level.
func (s span) isBucket() bool {
	first, end := s.buckets()
	return end-first == 1
}

// life is the span of all events.
var life = span{count.ByLife, control.Earliest, control.Latest}

// cover splits a range into spans, in the order of time: as few as possible, of the highest levels that fit.
func cover(lo, hi int64) []span {
	lo, hi = max(lo, control.Earliest), min(hi, control.Latest)
	if lo == control.Earliest && hi == control.Latest {
		return []span{life}
	}
	return coverFrom(count.ByDay, lo, hi)
}

// coverFrom is cover without the levels above level.
func coverFrom(level int, lo, hi int64) []span {
	switch {
	case lo >= hi:
		return nil
	case level == rawLevel:
		return []span{{rawLevel, lo, hi}}
	}
	size := count.BucketSize[level]
	first, last := count.BucketOf(level, lo+size-1)*size, count.BucketOf(level, hi)*size
	if first >= last {
		return coverFrom(level-1, lo, hi)
	}
	spans := append(coverFrom(level-1, lo, first), span{level, first, last})
	return append(spans, coverFrom(level-1, last, hi)...)
}

// rangeOf returns the range of an inclusive range of times; nil is no bound.
func rangeOf(from, to *time.Time) (lo, hi int64) {
	lo, hi = control.Earliest, control.Latest
	if from != nil {
		if lo = from.UnixMicro(); from.Nanosecond()%1000 != 0 {
			lo++
		}
	}
	if to != nil {
		hi = to.UnixMicro() + 1
	}
	return lo, hi
}
