package postgres

import (
	"sync"
	"time"

	"github.com/google/uuid"

	"mtagd/store"
)

// folding knows the merchants whose tally has rows of this node. Those of a node that has died are found by sweep.
type folding struct {
	mu        sync.Mutex
	merchants map[uuid.UUID]unfolded
	portion   int // rows in one transaction; 0: foldRows
}

// unfolded is what this node has added to the tally of a merchant.
type unfolded struct {
	rows  int
	due   int // of these rows, those that the fold under way moves
	since time.Time
}

// A merchant's tally is folded when it has many rows, which each listing of the merchant reads, or after a while. A row of the counters
// is updated once for all of them: the more there are, the less an event costs.
const (
	foldInterval = time.Second // between looks at what is due
	manyRows     = 500
	foldAfter    = 10 * time.Second

	// maxUnfolded is how many rows of a merchant this node leaves in the tally before it refuses events of the merchant. A page reads
	// them all, which takes about 1 µs for each. Rows are added faster than they are folded if each event has a minute or a name of
	// its own, such as when a merchant sends the events of a year. Other merchants are not concerned.
	maxUnfolded = 50_000

	// A portion takes well under a second on a disk in good order. It is halved after each failure: a slow one may need more than
	// foldTimeout.
	foldRows    = 4000
	fewestRows  = 50
	foldTimeout = 30 * time.Second
)

var errManyUnfolded = store.Unavailable("events of this merchant arrive faster than they can be counted: those with a minute or a name of their own take longest")

// accepts returns why events of a merchant are refused, or nil.
func (f *folding) accepts(m uuid.UUID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.merchants[m].rows >= maxUnfolded {
		return errManyUnfolded
	}
	return nil
}

// note notes what a flush has added.
func (f *folding) note(t tallies) {
	rows := map[uuid.UUID]int{}
	for k := range t {
		rows[k.merchant]++
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.merchants == nil {
		f.merchants = map[uuid.UUID]unfolded{}
	}
	for m, n := range rows {
		u, known := f.merchants[m]
		if !known {
			u.since = time.Now()
		}
		u.rows += n
		f.merchants[m] = u
	}
}

// takeDue returns the merchants to fold now.
func (f *folding) takeDue() (due []uuid.UUID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for m, u := range f.merchants {
		if u.rows >= manyRows || time.Since(u.since) >= foldAfter {
			u.due = u.rows
			f.merchants[m] = u
			due = append(due, m)
		}
	}
	return due
}

// moved notes that rows of a merchant were moved: n of them, and all that were due when the fold of the merchant is complete. Some may
// have been added by other nodes, so n counts at most as far as rows are due.
func (f *folding) moved(m uuid.UUID, n int, complete bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.merchants[m]
	if u.due == 0 {
		return // this is the fold of a removal, or of a sweep
	}
	if n = min(n, u.due); complete {
		n = u.due
		u.since = time.Now() // what is left was added since the fold began
	}
	u.rows, u.due = u.rows-n, u.due-n
	if f.merchants[m] = u; u.rows == 0 {
		delete(f.merchants, m)
	}
}

// rowsAtOnce returns how many rows a transaction moves.
func (f *folding) rowsAtOnce() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.portion == 0 {
		return foldRows
	}
	return f.portion
}

// adapt halves the portions after a transaction that has failed, and doubles them after one that has not.
func (f *folding) adapt(failed bool) {
	rows := f.rowsAtOnce() * 2
	if failed {
		rows /= 4
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.portion = min(max(rows, fewestRows), foldRows)
}
