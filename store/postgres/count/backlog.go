package count

import (
	"cmp"
	"sync"
	"time"

	"github.com/google/uuid"

	"mtagd/store"
)

// backlog counts the rows of this node in the tally, by merchant. RollUpLeft finds the rows of dead nodes.
type backlog struct {
	mu        sync.Mutex
	merchants map[uuid.UUID]waiting
	portion   int // rows in one transaction; 0: RowsAtOnce
}

// waiting describes the rows of this node in the tally for one merchant.
type waiting struct {
	rows  int
	due   int // number of rows that the present rollup moves
	since time.Time
}

// Each listing of a merchant reads the merchant's rows, so many rows are rolled up immediately. Fewer rows wait for a while:
// a rollup updates a counter once for all rows, so each event costs less.
const (
	rollUpInterval = time.Second      // how often a node looks for due rows
	manyRows       = 500              // as many rows are due immediately
	rollUpAfter    = 10 * time.Second // when fewer rows are due

	// MaxBacklog is the number of a merchant's rows in the tally at which this node refuses the merchant's events. Each page
	// reads all rows, at about 1 µs a row. Rows arrive faster than they are rolled up if nearly every event has another
	// minute or name, for example when a merchant sends the events of a whole year. Other merchants are not affected.
	MaxBacklog = 50_000

	// RowsAtOnce takes well under a second on a healthy disk. On a slow one it may take more than rollUpTimeout. So a
	// transaction moves half as many rows after each failure, down to fewestRows.
	RowsAtOnce    = 4000
	fewestRows    = 50
	rollUpTimeout = 30 * time.Second
)

var ErrBacklog = store.Unavailable("events of this merchant arrive faster than they can be counted: events spread over many minutes or names take longest")

// Accepts returns an error of KindUnavailable if too many rows of a merchant wait.
func (f *backlog) Accepts(m uuid.UUID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.merchants[m].rows >= MaxBacklog {
		return ErrBacklog
	}
	return nil
}

// Note adds the rows of a flush.
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

// moved subtracts n rows of a merchant that were rolled up, but at most the due ones: some may be rows of other nodes.
// complete means that all due rows were moved.
func (f *backlog) moved(m uuid.UUID, n int, complete bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.merchants[m]
	if u.due == 0 {
		return // the rollup was not of takeDue, but of a removal or of RollUpLeft
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
