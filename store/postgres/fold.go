package postgres

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

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
		err := e.fold(e.opened, e.folding.takeDue())
		if err != nil && !failing && e.opened.Err() == nil {
			e.log.Error("counters cannot be brought up to date now; it is tried again, and listings get slower meanwhile", "error", err)
		}
		failing = err != nil
	}
}

// foldMerchants is how many merchants share a transaction. Each has an equal share of its rows.
const foldMerchants = 40

// fold moves what the tallies of merchants have now into the counters. What is added meanwhile remains, so a busy merchant cannot keep
// it from its end; and a merchant with more rows than its share waits until the others had their turns. When a merchant's rows cannot
// be moved, fold goes on with the others.
func (e *engine) fold(ctx context.Context, merchants []uuid.UUID) error {
	if len(merchants) == 0 {
		return nil
	}
	var citus bool
	var upTo int64
	if err := e.pool.QueryRow(ctx, "SELECT "+citusInstalled+", last_value FROM receipt").Scan(&citus, &upTo); err != nil {
		return err
	}
	together := foldMerchants
	if citus {
		together = 1
	}
	var errs []error
	groups := slices.Collect(slices.Chunk(merchants, together))
	for len(groups) > 0 {
		group := groups[0]
		groups = groups[1:]
		share := max(e.folding.rowsAtOnce()/len(group), 1)
		moved, err := e.foldSome(ctx, group, upTo, share, citus)
		e.folding.adapt(err != nil)
		if err != nil {
			_, answered := errors.AsType[*pgconn.PgError](err)
			switch {
			case answered && len(group) > 1: // of one merchant, perhaps
				groups = slices.AppendSeq(groups, slices.Chunk(group, 1))
			case answered || errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
				errs = append(errs, err)
			default: // there is no database
				return errors.Join(append(errs, err)...)
			}
			continue
		}
		var cut []uuid.UUID
		for _, m := range group {
			complete := moved[m] < share
			e.folding.moved(m, moved[m], complete)
			if !complete {
				cut = append(cut, m)
			}
		}
		if len(cut) > 0 {
			groups = append(groups, cut)
		}
	}
	return errors.Join(errs...)
}

// The statements that take rows out of the tally, the oldest first: at most $3 of each merchant, up to the flush $2.
const (
	// takeRows passes over dead rows of earlier folds. With Citus, it would ask all shards.
	takeRows = `DELETE FROM tally WHERE ctid = ANY(ARRAY(SELECT t.ctid FROM unnest($1::uuid[]) AS w(merchant) CROSS JOIN LATERAL (
		SELECT ctid FROM tally WHERE merchant = w.merchant AND seq > coalesce((SELECT folded FROM usage u WHERE u.merchant = w.merchant), 0)
		AND seq <= $2 ORDER BY seq LIMIT $3) AS t)) RETURNING merchant, seq, minute, name, tag, bot, n, bytes`

	// takeRowsOfOne is about one shard.
	takeRowsOfOne = `DELETE FROM tally WHERE merchant = $1 AND ctid = ANY(ARRAY(SELECT ctid FROM tally WHERE merchant = $1
		AND seq <= $2 ORDER BY seq LIMIT $3)) RETURNING merchant, seq, minute, name, tag, bot, n, bytes`
)

// beginFold begins a transaction whose commit waits for no disk and no standby. If it is lost, the rows are in the tally again. A plan
// that was made while the tally was empty would compare each of its rows with each place in the array, by a scan of the table.
const beginFold = begin + "; SET LOCAL synchronous_commit = off; SET LOCAL jit = off; SET LOCAL enable_seqscan = off"

// foldWait is how long a fold waits for those of other nodes, and for removals.
const foldWait = time.Minute

// foldSome moves at most share rows of each merchant, and returns how many. With Citus, there must be one merchant.
//
// Whoever reads the tally passes over the flushes up to usage.folded. Flushes become visible in the order of their numbers: so none
// before the last one that was moved can follow. Of that one, rows may be left when the merchant had more than its share.
// With Citus, a flush can follow: a worker that failed commits it later. So usage.folded remains as it is.
func (e *engine) foldSome(ctx context.Context, merchants []uuid.UUID, upTo int64, share int, citus bool) (moved map[uuid.UUID]int, err error) {
	ctx, cancel := context.WithTimeout(ctx, foldWait+foldTimeout)
	defer cancel()
	err = pgx.BeginTxFunc(ctx, e.pool, pgx.TxOptions{BeginQuery: beginFold}, func(tx pgx.Tx) error {
		// One fold at a time: two would wait for each other's rows.
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", lockFold); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, foldTimeout)
		defer cancel()
		rows, folded := tallies{}, map[uuid.UUID]int64{}
		moved = map[uuid.UUID]int{}
		sql, of := takeRows, any(merchants)
		if citus {
			sql, of = takeRowsOfOne, merchants[0]
		}
		if err := query(ctx, tx, func(row pgx.Rows) error {
			var k tallyKey
			var seq int64
			var a amount
			if err := row.Scan((*[16]byte)(&k.merchant), &seq, &k.minute, &k.name, &k.tag, &k.bot, &a.n, &a.bytes); err != nil {
				return err
			}
			was := rows[k]
			rows[k] = amount{was.n + a.n, was.bytes + a.bytes}
			moved[k.merchant]++
			folded[k.merchant] = max(folded[k.merchant], seq)
			return nil
		}, sql, of, upTo, share); err != nil || len(rows) == 0 {
			return err
		}
		for m, n := range moved {
			if n == share {
				folded[m]--
			}
		}
		if citus {
			clear(folded)
		}
		return rows.addTo(ctx, tx, folded)
	})
	return moved, err
}

// sweep folds what was left in the tally for a while: by nodes that have died, or that do not know what became of a flush. A flush's
// number may be ahead of the clock: then its rows wait longer.
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
	return e.fold(ctx, merchants)
}
