package postgres

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

// minutes returns n tallies of a merchant, each of another minute.
func minutes(merchant uuid.UUID, n int) tallies {
	t := tallies{}
	for i := range n {
		t[tallyKey{merchant: merchant, minute: int64(i)}] = amount{1, 1}
	}
	return t
}

// A node folds the tally of a merchant that has many rows, and that of any other merchant after a while.
func TestFoldingIsDue(t *testing.T) {
	var f folding
	busy, idle := uuid.New(), uuid.New()
	f.note(minutes(idle, 1))
	f.note(minutes(busy, manyRows-1))
	f.note(minutes(busy, 1))
	if due := f.takeDue(); len(due) != 1 || due[0] != busy {
		t.Errorf("due are %v", due)
	}
	f.note(minutes(busy, 1)) // during the fold
	f.moved(busy, manyRows-10, false)
	f.moved(busy, 500, true) // rows of other nodes are among them
	if left := f.merchants[busy]; left.rows != 1 || left.due != 0 {
		t.Errorf("left are %+v", left)
	}
	if due := f.takeDue(); len(due) != 0 {
		t.Errorf("due again are %v", due)
	}
	for m, u := range f.merchants {
		u.since = time.Now().Add(-foldAfter)
		f.merchants[m] = u
	}
	f.note(minutes(idle, 1)) // does not postpone the fold
	for range 2 {            // the first fold fails
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

// After a failure, a fold moves fewer rows in one transaction.
func TestPortionsOfAFold(t *testing.T) {
	var f folding
	f.adapt(true)
	if n := f.rowsAtOnce(); n != foldRows/2 {
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
	if n := f.rowsAtOnce(); n != foldRows {
		t.Errorf("%d rows after many successes", n)
	}
}

// Flushes of older nodes, folds and removals lock counters in one order.
func TestCountersAreSorted(t *testing.T) {
	k := counterKey{name: "PageView", tag: "cs_1"}
	bot := k
	bot.bot = true
	if compareCounters(k, bot) >= 0 || compareCounters(bot, k) <= 0 || compareCounters(k, k) != 0 {
		t.Error("counters of bots are not after those of others")
	}
}
