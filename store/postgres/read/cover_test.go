package read

import (
	"math/rand/v2"
	"testing"

	"mtagd/store/postgres/control"
	"mtagd/store/postgres/count"
)

func TestCoverIsTheWholeRange(t *testing.T) {
	check := func(lo, hi int64) {
		t.Helper()
		spans := cover(lo, hi)
		at := max(lo, control.Earliest)
		for _, s := range spans {
			if s.lo != at || s.hi <= s.lo {
				t.Fatalf("cover(%d, %d) is %v", lo, hi, spans)
			}
			if at = s.hi; s.level >= count.ByMinute && s.level < count.ByLife && (s.lo%count.BucketSize[s.level] != 0 || s.hi%count.BucketSize[s.level] != 0) {
				t.Fatalf("cover(%d, %d) has %v, which is not at the bounds of buckets", lo, hi, s)
			}
		}
		if want := min(hi, control.Latest); want > max(lo, control.Earliest) && at != want || len(spans) > 2*(count.ByLife+1)-1 {
			t.Fatalf("cover(%d, %d) is %v", lo, hi, spans)
		}
	}
	for range 20_000 {
		lo := rand.Int64N(control.Latest-control.Earliest) + control.Earliest
		hi := lo + rand.Int64N(1<<rand.IntN(56))
		check(lo, hi)
		unit := count.BucketSize[rand.IntN(len(count.BucketSize))]
		check(lo/unit*unit, hi/unit*unit)
	}
	check(control.Earliest-1, control.Latest+1)
	check(5, 5)
	check(control.Latest, control.Latest+5)
}
