package read

import (
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/postgres/control"
	"mtagd/store/postgres/count"
	"mtagd/store/testenv"
)

// Without a beginning, the first bucket has the events of any number of years. It is what the others leave of all events:
// their counters are not read.
func TestASummaryReadsNoCountersOfItsFirstBucket(t *testing.T) {
	now := time.Date(2026, 3, 5, 12, 0, 0, 0, time.UTC)
	for _, bucket := range []store.Bucket{store.NoBucket, store.Hourly, store.Daily, store.Monthly} {
		q := &store.SummaryQuery{Bucket: bucket, Now: now}
		starts, end, err := q.Starts(new(time.Time{}), new(now))
		testenv.Check(t, err)
		first := append(starts, end)[1].UnixMicro()
		s := &summing{q: q, starts: starts, end: end.UnixMicro()}
		for _, n := range s.nodes(control.Earliest) {
			if n.level != count.ByLife && n.lo < first {
				t.Errorf("by %q, counters from %v to %v are read, and the first bucket ends at %v", bucket, TimeAt(n.lo), TimeAt(n.hi), TimeAt(first))
			}
		}
	}
}
