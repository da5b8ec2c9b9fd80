package count

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mtagd/store/postgres/conn"
)

// KeepRolledUp rolls up the deltas of this node in the background.
func (c *Counters) KeepRolledUp() {
	c.db.Repeat(rollUpInterval, func(ctx context.Context) error { return c.RollUp(ctx, c.backlog.takeDue()) }, func(err error) {
		if err != nil {
			c.db.Log.Error("counters cannot be brought up to date now; the node tries again, and listings get slower meanwhile", "error", err)
		}
	})
}

// merchantsAtOnce is how many merchants share a transaction. Each may move an equal share of rows.
const merchantsAtOnce = 40

// RollUp moves the present deltas of merchants into the counters. It leaves rows that are added meanwhile, so it ends even
// if a merchant is busy. A merchant with more rows than its share continues after the others had their turns. When a
// merchant's rows cannot be moved, RollUp goes on with the others, and returns the error at the end.
func (c *Counters) RollUp(ctx context.Context, merchants []uuid.UUID) error {
	if len(merchants) == 0 {
		return nil
	}
	var citus bool
	var upTo int64
	if err := c.db.Pool.QueryRow(ctx, "SELECT "+conn.CitusInstalled+", last_value FROM receipt").Scan(&citus, &upTo); err != nil {
		return err
	}
	together := merchantsAtOnce
	if citus {
		together = 1
	}
	var errs []error
	groups := slices.Collect(slices.Chunk(merchants, together))
	for len(groups) > 0 {
		group := groups[0]
		groups = groups[1:]
		share := max(c.backlog.rowsAtOnce()/len(group), 1)
		moved, err := c.RollUpSome(ctx, group, upTo, share, citus)
		c.backlog.adapt(err != nil)
		if err != nil {
			_, answered := errors.AsType[*pgconn.PgError](err)
			switch {
			case answered && len(group) > 1: // perhaps one merchant is the cause: try each alone
				groups = slices.AppendSeq(groups, slices.Chunk(group, 1))
			case answered || errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
				errs = append(errs, err)
			default: // the database cannot be reached
				return errors.Join(append(errs, err)...)
			}
			continue
		}
		var cut []uuid.UUID
		for _, m := range group {
			complete := moved[m] < share
			c.backlog.moved(m, moved[m], complete)
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
	// TakeRows starts after usage.folded, and so skips the dead rows of earlier rollups. With Citus, it would query all
	// shards.
	TakeRows = `DELETE FROM tally WHERE ctid = ANY(ARRAY(SELECT t.ctid FROM unnest($1::uuid[]) AS w(merchant) CROSS JOIN LATERAL (
		SELECT ctid FROM tally WHERE merchant = w.merchant AND seq > coalesce((SELECT folded FROM usage u WHERE u.merchant = w.merchant), 0)
		AND seq <= $2 ORDER BY seq LIMIT $3) AS t)) RETURNING merchant, seq, minute, name, tag, bot, n, bytes`

	// TakeRowsOfOne takes the rows of one merchant, which are in one shard.
	TakeRowsOfOne = `DELETE FROM tally WHERE merchant = $1 AND ctid = ANY(ARRAY(SELECT ctid FROM tally WHERE merchant = $1
		AND seq <= $2 ORDER BY seq LIMIT $3)) RETURNING merchant, seq, minute, name, tag, bot, n, bytes`
)

// BeginRollUp begins a transaction whose commit waits neither for the disk nor for standbys. If it is lost, the rows are in
// the tally again. A plan from when a table was small must not scan it, as in conn.BeginRead.
const BeginRollUp = conn.Begin + "; SET LOCAL synchronous_commit = off; SET LOCAL jit = off; SET LOCAL enable_seqscan = off"

// rollUpWait is how long a rollup waits for those of other nodes, and for removals.
const rollUpWait = time.Minute

// RollUpSome moves at most share rows of each merchant, and returns how many. With Citus, there must be one merchant.
//
// It sets usage.folded, up to which readers skip the tally. Flushes become visible in the order of their numbers, so no
// flush with a lower number than the last moved row can appear later. If the merchant has more rows than its share, rows of
// the last flush may be left: then usage.folded is one less. With Citus, usage.folded does not change, because a worker that
// has failed commits its part of a flush later.
func (c *Counters) RollUpSome(ctx context.Context, merchants []uuid.UUID, upTo int64, share int, citus bool) (moved map[uuid.UUID]int, err error) {
	ctx, cancel := context.WithTimeout(ctx, rollUpWait+rollUpTimeout)
	defer cancel()
	err = pgx.BeginTxFunc(ctx, c.db.Pool, pgx.TxOptions{BeginQuery: BeginRollUp}, func(tx pgx.Tx) error {
		// Only one rollup runs at a time: two would wait for each other's rows.
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", conn.LockRollup); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, rollUpTimeout)
		defer cancel()
		rows, folded := Deltas{}, map[uuid.UUID]int64{}
		moved = map[uuid.UUID]int{}
		sql, of := TakeRows, any(merchants)
		if citus {
			sql, of = TakeRowsOfOne, merchants[0]
		}
		var k DeltaKey
		var seq int64
		var a Amount
		if err := conn.Query(ctx, tx, []any{(*[16]byte)(&k.merchant), &seq, &k.Minute, &k.Name, &k.Tag, &k.Bot, &a.N, &a.Bytes}, func() error {
			was := rows[k]
			rows[k] = Amount{was.N + a.N, was.Bytes + a.Bytes}
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
		return rows.AddTo(ctx, tx, folded)
	})
	return moved, err
}

// The statements that find the merchants that have rows in the tally up to the flush $1.
const (
	// listLeft starts after usage.folded, as TakeRows does. Rows of deleted merchants are removed, not rolled up.
	listLeft = `SELECT m.id FROM ` + conn.Merchants + ` m LEFT JOIN usage u ON u.merchant = m.id CROSS JOIN LATERAL (SELECT FROM tally
		WHERE merchant = m.id AND seq > coalesce(u.folded, 0) AND seq <= $1 LIMIT 1) AS t`

	// listLeftWithCitus queries all shards, and reads the dead rows of earlier rollups too.
	listLeftWithCitus = "SELECT DISTINCT merchant FROM tally WHERE seq <= $1"
)

// RollUpLeft rolls up rows that have been in the tally for a minute. They are of nodes that have died, or of flushes whose
// commit was uncertain. The number of a flush is a time. If it is ahead of the clock, its rows wait longer.
func (c *Counters) RollUpLeft(ctx context.Context) error {
	const age = 6 * rollUpAfter
	now, err := c.db.Clock(ctx)
	if err != nil {
		return err
	}
	merchants, err := c.LeftBehind(ctx, now.Add(-age).UnixMicro())
	if err != nil {
		return err
	}
	return c.RollUp(ctx, merchants)
}

// LeftBehind returns the merchants that have rows in the tally up to a flush.
func (c *Counters) LeftBehind(ctx context.Context, upTo int64) ([]uuid.UUID, error) {
	sql := listLeft
	if citus, err := conn.HasCitus(ctx, c.db.Pool); err != nil {
		return nil, err
	} else if citus {
		sql = listLeftWithCitus
	}
	return conn.SelectRows(ctx, c.db, func(m *uuid.UUID) []any { return []any{m} }, sql, upTo)
}
