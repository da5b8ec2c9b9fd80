package count

import (
	"cmp"
	"sync"
	"time"

	"github.com/google/uuid"

	"mtagd/store"
)

// backlog knows the merchants that have rows of this node in the tally. Rows of a node that has died are found by RollUpLeft.
type backlog struct {
	mu        sync.Mutex
	merchants map[uuid.UUID]waiting
	portion   int // rows in one transaction; 0: RowsAtOnce
}

// waiting says which rows of this node the tally has of a merchant.
type waiting struct {
	rows  int
	due   int // how many of these the rollup under way moves
	since time.Time
}

// A merchant's rows are rolled up when there are many, because each listing of the merchant reads them, or else after a while. One rollup
// updates a counter once for all rows: the more rows, the less each event costs.
const (
	rollUpInterval = time.Second      // how often a node looks for what is due
	manyRows       = 500              // as many rows are due immediately
	rollUpAfter    = 10 * time.Second // when fewer rows are due

	// MaxBacklog is how many rows of a merchant this node leaves in the tally before it refuses events of the merchant. Each page
	// reads all of them, which takes about 1 µs for each. Rows arrive faster than they are rolled up if each event has a minute or a name
	// of its own, such as when a merchant sends the events of a year. Other merchants are not affected.
	MaxBacklog = 50_000

	// RowsAtOnce takes well under a second on a healthy disk. On a slow one it may take more than rollUpTimeout. So a transaction
	// moves half as many rows after each failure, down to fewestRows.
	RowsAtOnce    = 4000
	fewestRows    = 50
	rollUpTimeout = 30 * time.Second
)

var ErrBacklog = store.Unavailable("events of this merchant arrive faster than they can be counted: those with a minute or a name of their own take longest")

// Accepts returns an error of KindUnavailable if too many rows of a merchant wait.
func (f *backlog) Accepts(m uuid.UUID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.merchants[m].rows >= MaxBacklog {
		return ErrBacklog
	}
	return nil
}

// Note notes the rows that a flush has added.
func (f *backlog) Note(t Deltas) {
	rows := map[uuid.UUID]int{}
	for k := range t {
		rows[k.merchant]++
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.merchants == nil {
		f.merchants = map[uuid.UUID]waiting{}
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

// takeDue returns the merchants whose deltas to roll up now.
func (f *backlog) takeDue() (due []uuid.UUID) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for m, u := range f.merchants {
		if u.rows >= manyRows || time.Since(u.since) >= rollUpAfter {
			u.due = u.rows
			f.merchants[m] = u
			due = append(due, m)
		}
	}
	return due
}

// moved notes that n rows of a merchant were moved. Some may have been added by other nodes, so at most the due ones are subtracted.
// When the merchant's rollup is complete, all due rows were moved.
func (f *backlog) moved(m uuid.UUID, n int, complete bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.merchants[m]
	if u.due == 0 {
		return // a removal or a sweep rolls up
	}
	n = min(n, u.due)
	if complete {
		n = u.due
		u.since = time.Now() // the rows that are left were added after the rollup began
	}
	u.rows, u.due = u.rows-n, u.due-n
	if u.rows == 0 {
		delete(f.merchants, m)
		return
	}
	f.merchants[m] = u
}

// rowsAtOnce returns how many rows a transaction may move.
func (f *backlog) rowsAtOnce() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return cmp.Or(f.portion, RowsAtOnce)
}

// adapt halves the portion after a transaction that has failed, and doubles it after one that has succeeded.
func (f *backlog) adapt(failed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rows := cmp.Or(f.portion, RowsAtOnce) * 2
	if failed {
		rows /= 4
	}
	f.portion = min(max(rows, fewestRows), RowsAtOnce)
}
