// Package count knows how many events there are in each minute, hour and day, of each name and tag.
//
// A flush does not update counters: flushes would wait for each other, and update the same rows hundreds of times a second.
// Instead it inserts the changes, its deltas, into the table tally, which takes no row locks. Every few seconds each node
// moves the deltas of its flushes into the counters: a rollup. Deltas that are not rolled up yet are pending. So the number
// of events is the sum of the counters and of the pending deltas, both read as of one moment.
//
//	counter.go  the counters
//	delta.go    deltas, of flushes and of removed events
//	backlog.go  which merchants' deltas to roll up, and whose events to refuse because too many are pending
//	rollup.go   moves deltas into the counters
package count

import (
	"cmp"
	"maps"
	"slices"

	"github.com/google/uuid"

	"mtagd/store/postgres/conn"
)

// Counters are the counters of a database, and this node's backlog of deltas.
type Counters struct {
	db *conn.DB
	backlog
}

// New returns the counters of a database.
func New(db *conn.DB) *Counters { return &Counters{db: db} }

// The levels of counters, and how long a bucket of each is (µs). The highest level has one bucket.
const (
	ByMinute = 0
	ByHour   = 1
	ByDay    = 2
	ByLife   = 3
)

var BucketSize = [...]int64{ByMinute: 60_000_000, ByHour: 3600_000_000, ByDay: 86400_000_000}

// BucketOf returns the number of a time's bucket. Times before 1970 have negative numbers.
func BucketOf(level int, at int64) int64 {
	if level == ByLife {
		return 0
	}
	size := BucketSize[level]
	n := at / size
	if at%size < 0 {
		n--
	}
	return n
}

// BucketSQL is BucketOf in SQL, for buckets of a size that is in the unit of at.
func BucketSQL(at, size string) string {
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

// additions are numbers to add to counters.
type additions map[counterKey]int64

// addDelta adds n events to all counters that include them.
func (c additions) addDelta(t DeltaKey, n int64) {
	at := t.Minute * BucketSize[ByMinute]
	for level := range ByLife + 1 {
		k := counterKey{t.merchant, int16(level), "", BucketOf(level, at), t.Tag, t.Bot}
		c[k] += n
		k.name = t.Name
		c[k] += n
	}
}

// compareCounters is the order in which rollups, removals and the flushes of older nodes lock counters. It must be total:
// transactions that lock the same counters in different orders could deadlock.
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

// parameters returns the parameters of addCounters.
func (c additions) parameters() []any {
	keys := slices.SortedFunc(maps.Keys(c), compareCounters)
	return []any{
		conn.Map(keys, func(k *counterKey) uuid.UUID { return k.merchant }),
		conn.Map(keys, func(k *counterKey) int16 { return k.level }),
		conn.Map(keys, func(k *counterKey) string { return k.name }),
		conn.Map(keys, func(k *counterKey) int64 { return k.bucket }),
		conn.Map(keys, func(k *counterKey) string { return k.tag }),
		conn.Map(keys, func(k *counterKey) bool { return k.bot }),
		conn.Map(keys, func(k *counterKey) int64 { return c[*k] }),
	}
}
