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

import "mtagd/store/postgres/conn"

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

// ForEachCounter selects each counter that counts the events of w.minute and w.name in a statement: its level is l.level,
// its name is v.name, and its bucket is BucketOfMinute.
const ForEachCounter = `(VALUES (0, 1), (1, 60), (2, 1440), (3, 0)) AS l(level, size), LATERAL (VALUES (w.name), ('')) AS v(name)`

// BucketOfMinute is the bucket of a counter: see ForEachCounter.
var BucketOfMinute = "CASE WHEN l.size = 0 THEN 0 ELSE " + BucketSQL("w.minute", "l.size") + " END"
