package count

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

// minutes returns n deltas of a merchant, each of another minute.
func minutes(merchant uuid.UUID, n int) Deltas {
	t := Deltas{}
	for i := range n {
		t[DeltaKey{merchant: merchant, Minute: int64(i)}] = Amount{1, 1}
	}
	return t
}

// A node rolls up the deltas of a merchant that has many, and those of any other merchant after a while.
func TestFoldingIsDue(t *testing.T) {
	var f backlog
	busy, idle := uuid.New(), uuid.New()
	f.Note(minutes(idle, 1))
	f.Note(minutes(busy, manyRows-1))
	f.Note(minutes(busy, 1))
	if due := f.takeDue(); len(due) != 1 || due[0] != busy {
		t.Errorf("due are %v", due)
	}
	f.Note(minutes(busy, 1)) // during the rollup
	f.moved(busy, manyRows-10, false)
	f.moved(busy, 500, true) // rows of other nodes are among them
	if left := f.merchants[busy]; left.rows != 1 || left.due != 0 {
		t.Errorf("left are %+v", left)
	}
	if due := f.takeDue(); len(due) != 0 {
		t.Errorf("due again are %v", due)
	}
	for m, u := range f.merchants {
		u.since = time.Now().Add(-rollUpAfter)
		f.merchants[m] = u
	}
	f.Note(minutes(idle, 1)) // does not postpone the rollup
	for range 2 {            // the first rollup fails
		if due := f.takeDue(); len(due) != 2 {
			t.Errorf("due later are %v", due)
		}
	}
	f.moved(idle, 2, true)
	f.moved(busy, 1, true)
	if len(f.merchants) != 0 {
		t.Errorf("left are %v", f.merchants)
	}
}

// After a failure, a rollup moves fewer rows in one transaction.
func TestPortionsOfAFold(t *testing.T) {
	var f backlog
	f.adapt(true)
	if n := f.rowsAtOnce(); n != RowsAtOnce/2 {
		t.Errorf("%d rows after a failure", n)
	}
	for range 20 {
		f.adapt(true)
	}
	if n := f.rowsAtOnce(); n != fewestRows {
		t.Errorf("%d rows after many failures", n)
	}
	for range 20 {
		f.adapt(false)
	}
	if n := f.rowsAtOnce(); n != RowsAtOnce {
		t.Errorf("%d rows after many successes", n)
	}
}
