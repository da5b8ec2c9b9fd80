package postgres

import (
	"cmp"
	"maps"
	"slices"

	"github.com/google/uuid"

	"mtagd/store/postgres/conn"
)

// The levels of counters, and how long a bucket of each is (µs). The highest level has one bucket.
const (
	byMinute = 0
	byHour   = 1
	byDay    = 2
	byLife   = 3
)

var bucketSize = [...]int64{byMinute: 60_000_000, byHour: 3600_000_000, byDay: 86400_000_000}

// bucketOf returns the number of a time's bucket. Times before 1970 have negative numbers.
func bucketOf(level int, at int64) int64 {
	if level == byLife {
		return 0
	}
	size := bucketSize[level]
	n := at / size
	if at%size < 0 {
		n--
	}
	return n
}

// bucketSQL is bucketOf in SQL, for buckets of a size that is in the unit of at.
func bucketSQL(at, size string) string {
	return "(" + at + " / " + size + " - (" + at + " % " + size + " < 0)::int)"
}

// counterKey is the key of a counter.
type counterKey struct {
	merchant uuid.UUID
	level    int16
	name     string // "": of all names
	bucket   int64
	tag      string
	bot      bool
}

// counts are additions to counters.
type counts map[counterKey]int64

// add counts n events in all counters that they belong to.
func (c counts) add(t tallyKey, n int64) {
	at := t.minute * bucketSize[byMinute]
	for level := range byLife + 1 {
		k := counterKey{t.merchant, int16(level), "", bucketOf(level, at), t.tag, t.bot}
		c[k] += n
		k.name = t.name
		c[k] += n
	}
}

// compareCounters is the order in which flushes of older nodes, folds and removals lock counters. It must be total: two transactions that
// lock the same counters in different orders would deadlock.
func compareCounters(a, b counterKey) int {
	return cmp.Or(conn.CompareUUIDs(a.merchant, b.merchant), cmp.Compare(a.level, b.level), cmp.Compare(a.name, b.name),
		cmp.Compare(a.bucket, b.bucket), cmp.Compare(a.tag, b.tag), compareBools(a.bot, b.bot))
}

// compareBools puts false first.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// columns returns the parameters of addCounters.
func (c counts) columns() []any {
	keys := slices.SortedFunc(maps.Keys(c), compareCounters)
	n := len(keys)
	merchants, levels, names, buckets := make([]uuid.UUID, n), make([]int16, n), make([]string, n), make([]int64, n)
	tags, bots, ns := make([]string, n), make([]bool, n), make([]int64, n)
	for i, k := range keys {
		merchants[i], levels[i], names[i], buckets[i], tags[i], bots[i], ns[i] = k.merchant, k.level, k.name, k.bucket, k.tag, k.bot, c[k]
	}
	return []any{merchants, levels, names, buckets, tags, bots, ns}
}
