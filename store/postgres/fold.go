package postgres

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// folding knows the merchants whose tally has rows of this node. Those of a node that has died are found by sweep.
type folding struct {
	mu        sync.Mutex
	merchants map[uuid.UUID]unfolded
}

// unfolded is what this node has added to the tally of a merchant.
type unfolded struct {
	rows  int
	since time.Time
}

// A merchant's tally is folded when it has many rows, which each listing of the merchant reads, or after a while. A row of the counters
// is updated once for all of them: the more there are, the less an event costs.
const (
	foldInterval  = time.Second // between looks at what is due
	manyRows      = 500
	foldAfter     = 10 * time.Second
	foldMerchants = 500    // in one transaction
	foldRows      = 20_000 // in one transaction
	foldTimeout   = 30 * time.Second
)

// note notes what a flush has added.
func (f *folding) note(t tallies) {
	rows := map[uuid.UUID]int{}
	for k := range t {
		rows[k.merchant]++
	}
	now := time.Now()
	for m, n := range rows {
		f.add(m, unfolded{n, now})
	}
}

func (f *folding) add(m uuid.UUID, more unfolded) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.merchants == nil {
		f.merchants = map[uuid.UUID]unfolded{}
	}
	if u, known := f.merchants[m]; known {
		more.rows += u.rows
		if u.since.Before(more.since) {
			more.since = u.since
		}
	}
	f.merchants[m] = more
}

// take returns the merchants to fold now, and forgets them.
func (f *folding) take() map[uuid.UUID]unfolded {
	due := map[uuid.UUID]unfolded{}
	f.mu.Lock()
	defer f.mu.Unlock()
	for m, u := range f.merchants {
		if u.rows >= manyRows || time.Since(u.since) >= foldAfter {
			due[m] = u
			delete(f.merchants, m)
		}
	}
	return due
}

// foldAlways folds what this node adds to the tally, until Close.
func (e *engine) foldAlways() {
	tick := time.NewTicker(foldInterval)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-e.opened.Done():
			return
		case <-tick.C:
		}
		due := e.folding.take()
		err := e.fold(e.opened, slices.Collect(maps.Keys(due)), foldNew)
		if err != nil {
			for m, u := range due {
				e.folding.add(m, u)
			}
		}
		if err != nil && !failing && e.opened.Err() == nil {
			e.log.Error("the counters cannot be brought up to date now; it is tried again, and listings get slower meanwhile", "error", err)
		}
		failing = err != nil
	}
}

// The statements that take rows out of the tally.
const (
	// foldNew is about several merchants: with Citus, it would ask all shards. It passes over dead rows of earlier folds.
	foldNew = `DELETE FROM tally WHERE ctid = ANY(ARRAY(SELECT t.ctid FROM unnest($1::uuid[]) AS w(merchant) CROSS JOIN LATERAL (
		SELECT ctid FROM tally WHERE merchant = w.merchant AND seq > coalesce((SELECT folded FROM usage u WHERE u.merchant = w.merchant), 0)
		LIMIT $2) AS t LIMIT $2)) RETURNING merchant, seq, minute, name, tag, bot, n, bytes`

	foldOne = `DELETE FROM tally WHERE merchant = $1 AND ctid = ANY(ARRAY(SELECT ctid FROM tally WHERE merchant = $1 LIMIT $2))
		RETURNING merchant, seq, minute, name, tag, bot, n, bytes`
)

// fold moves the tallies of merchants into the counters, with one of the statements above.
func (e *engine) fold(ctx context.Context, merchants []uuid.UUID, sql string) error {
	if len(merchants) == 0 {
		return nil
	}
	citus, err := hasCitus(ctx, e.pool)
	if err != nil {
		return err
	}
	portion := foldMerchants
	if citus || sql == foldOne {
		portion, sql = 1, foldOne
	}
	for len(merchants) > 0 {
		some := merchants[:min(portion, len(merchants))]
		n, err := e.foldSome(ctx, some, sql, foldRows, !citus)
		if err != nil {
			return err
		}
		if n < foldRows {
			merchants = merchants[len(some):]
		}
	}
	return nil
}

// beginFold begins a transaction whose commit waits for no disk and no standby. If it is lost, the rows are in the tally again. A plan
// that was made while the tally was empty would compare each of its rows with each place in the array, by a scan of the table.
const beginFold = begin + "; SET LOCAL synchronous_commit = off; SET LOCAL jit = off; SET LOCAL enable_seqscan = off"

// foldSome moves at most limit rows, and returns how many.
//
// Whoever reads the tally passes over the flushes up to usage.folded. Flushes become visible in the order of their numbers: so none
// before the last one that was moved can follow. With Citus, one can: a worker that failed commits it later. So usage.folded remains 0.
func (e *engine) foldSome(ctx context.Context, merchants []uuid.UUID, sql string, limit int, ordered bool) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, foldTimeout)
	defer cancel()
	err = pgx.BeginTxFunc(ctx, e.pool, pgx.TxOptions{BeginQuery: beginFold}, func(tx pgx.Tx) error {
		// One fold at a time: two would wait for each other's rows.
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", lockFold); err != nil {
			return err
		}
		moved, last := tallies{}, map[uuid.UUID]int64{}
		var of any = merchants
		if sql == foldOne {
			of = merchants[0]
		}
		if err := query(ctx, tx, func(rows pgx.Rows) error {
			var k tallyKey
			var seq int64
			var a amount
			if err := rows.Scan((*[16]byte)(&k.merchant), &seq, &k.minute, &k.name, &k.tag, &k.bot, &a.n, &a.bytes); err != nil {
				return err
			}
			n++
			was := moved[k]
			moved[k] = amount{was.n + a.n, was.bytes + a.bytes}
			last[k.merchant] = max(last[k.merchant], seq)
			return nil
		}, sql, of, limit); err != nil || n == 0 {
			return err
		}
		if !ordered || n == limit { // of the last ones, some rows may be left
			clear(last)
		}
		return moved.addTo(ctx, tx, last)
	})
	return n, err
}

// sweep folds what was left in the tally for a while: by nodes that have died, or that do not know what became of a flush.
func (e *engine) sweep(ctx context.Context) error {
	const age = 6 * foldAfter
	var merchants []uuid.UUID
	if err := e.read(ctx, func(tx pgx.Tx) error {
		now, err := e.timeOf(ctx, tx)
		if err != nil {
			return err
		}
		merchants = nil
		return query(ctx, tx, func(rows pgx.Rows) error {
			var m uuid.UUID
			err := rows.Scan(&m)
			merchants = append(merchants, m)
			return err
		}, "SELECT DISTINCT merchant FROM tally WHERE seq <= $1", now.Add(-age).UnixMicro())
	}); err != nil {
		return err
	}
	return e.fold(ctx, merchants, foldOne)
}
