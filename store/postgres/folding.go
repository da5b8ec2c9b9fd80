package postgres

import (
	"cmp"
	"sync"
	"time"

	"github.com/google/uuid"

	"mtagd/store"
)

// folding knows the merchants that have rows of this node in the tally. Rows of a node that has died are found by sweep.
type folding struct {
	mu        sync.Mutex
	merchants map[uuid.UUID]unfolded
	portion   int // rows in one transaction; 0: foldRows
}

// unfolded says which rows of this node the tally has of a merchant.
type unfolded struct {
	rows  int
	due   int // how many of these the fold under way moves
	since time.Time
}

// A merchant's rows are folded when there are many, because each listing of the merchant reads them, or else after a while. One fold
// updates a counter once for all rows: the more rows, the less each event costs.
const (
	foldInterval = time.Second      // how often a node looks for what is due
	manyRows     = 500              // as many rows are due immediately
	foldAfter    = 10 * time.Second // when fewer rows are due

	// maxUnfolded is how many rows of a merchant this node leaves in the tally before it refuses events of the merchant. Each page
	// reads all of them, which takes about 1 µs for each. Rows arrive faster than they are folded if each event has a minute or a name
	// of its own, such as when a merchant sends the events of a year. Other merchants are not affected.
	maxUnfolded = 50_000

	// foldRows takes well under a second on a healthy disk. On a slow one it may take more than foldTimeout. So a transaction
	// moves half as many rows after each failure, down to fewestRows.
	foldRows    = 4000
	fewestRows  = 50
	foldTimeout = 30 * time.Second
)

var errManyUnfolded = store.Unavailable("events of this merchant arrive faster than they can be counted: those with a minute or a name of their own take longest")

// accepts returns an error of KindUnavailable if too many rows of a merchant wait.
func (f *folding) accepts(m uuid.UUID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.merchants[m].rows >= maxUnfolded {
		return errManyUnfolded
	}
	return nil
}

// note notes the rows that a flush has added.
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

// moved notes that n rows of a merchant were moved. Some may have been added by other nodes, so at most the due ones are subtracted.
// When the merchant's fold is complete, all due rows were moved.
func (f *folding) moved(m uuid.UUID, n int, complete bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.merchants[m]
	if u.due == 0 {
		return // a removal or a sweep folds
	}
	n = min(n, u.due)
	if complete {
		n = u.due
		u.since = time.Now() // the rows that are left were added after the fold began
	}
	u.rows, u.due = u.rows-n, u.due-n
	if u.rows == 0 {
		delete(f.merchants, m)
		return
	}
	f.merchants[m] = u
}

// rowsAtOnce returns how many rows a transaction may move.
func (f *folding) rowsAtOnce() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cmp.Or(f.portion, foldRows)
}

// adapt halves the portion after a transaction that has failed, and doubles it after one that has succeeded.
func (f *folding) adapt(failed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rows := cmp.Or(f.portion, foldRows) * 2
	if failed {
		rows /= 4
	}
	f.portion = min(max(rows, fewestRows), foldRows)
}
