package conn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"mtagd/store"
	"mtagd/store/budget"
)

// Begin begins a transaction that writes. The server ends it when the node goes away or stops in the middle of it, so that
// its locks are free again.
const Begin = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '5s'; SELECT " + waitForStandbys

// Transact runs a transaction that writes. When it returns nil, the standbys have the transaction.
func (d *DB) Transact(ctx context.Context, write func(tx pgx.Tx) error) error {
	conn, err := d.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // after the check: others have the connection then
	if err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{BeginQuery: Begin}, write); err != nil {
		return err
	}
	return CheckReplicated(conn.Conn().PgConn())
}

// AwaitFlushes waits for the flushes that may have read before the call whose events are refused. Flushes that begin
// meanwhile wait for it, so it gives up after a second: before they fail.
func (d *DB) AwaitFlushes(ctx context.Context) error {
	return d.Transact(ctx, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT set_config('lock_timeout', '1s', true), pg_advisory_xact_lock($1)", LockRefusals)
		return err
	})
}

// BeginRead begins a transaction that reads. Compiling its statements (jit) would take longer than running them. Sequential
// scans are off: the planner chooses one while a table is small, and keeps that plan until the server analyzes the table,
// perhaps millions of rows later. With Citus, both hold on the coordinator only: turnOffJIT is for the workers.
//
// No statement may run for ever. Background work reads more at once than a query of a partner may.
const (
	BeginSnapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL jit = off; SET LOCAL enable_seqscan = off; "
	BeginRead     = BeginSnapshot + "SET LOCAL statement_timeout = '10min'"
	beginQuery    = BeginSnapshot + "SET LOCAL statement_timeout = '20s'"
)

// reserved is how many connections reads leave to events, to changes and to the follower. If slow reads kept these waiting,
// the node would conclude that the database does not answer.
const reserved = 4

// newReads returns the budget of reads. Its holders take turns, and one may have at most half of them under way: each
// partner; each merchant, for the look-ups of its tag hosts; and the service itself (""), for what it reads in the
// background.
func newReads(config *pgxpool.Config) *budget.Budget[string] {
	total := max(int64(config.MaxConns)-reserved, 1)
	return budget.New(total, func(string) int64 { return max(total/2, 1) }).Fair()
}

// Read calls read in one transaction, as of one moment, again after a failure of the connection. It waits while too many
// reads are under way.
func (d *DB) Read(ctx context.Context, read func(tx pgx.Tx) error) error {
	if partner := store.PartnerOf(ctx); partner != "" {
		return d.ReadFor(ctx, string(partner), read)
	}
	return d.ReadLong(ctx, read)
}

// ReadLong is Read with the timeout of background work, even for a partner's request.
func (d *DB) ReadLong(ctx context.Context, read func(tx pgx.Tx) error) error {
	return d.InTurn(ctx, string(store.PartnerOf(ctx)), func() error { return d.ReadNow(ctx, read) })
}

// ReadFor is Read for a holder of the budget other than the service itself, with the timeout of a request.
func (d *DB) ReadFor(ctx context.Context, holder string, read func(tx pgx.Tx) error) error {
	return d.InTurn(ctx, holder, func() error {
		until := time.Now().Add(d.queryTimeout)
		return d.readWithin(ctx, beginQuery, func(tx pgx.Tx) error { return read(timed{tx, until}) })
	})
}

// queryTimeout is how long the statements of a request may take together.
const queryTimeout = 20 * time.Second

// timed is a transaction that begins no query after a time. The timeout of statements ends the last one.
type timed struct {
	pgx.Tx
	until time.Time
}

// Query overrides pgx.Tx.
func (t timed) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if time.Now().After(t.until) {
		return nil, errTooSlow
	}
	return t.Tx.Query(ctx, sql, args...)
}

var errTooSlow = store.Unavailable("the database took too long to read")

// InTurn waits while too many reads are under way, and then calls read.
func (d *DB) InTurn(ctx context.Context, holder string, read func() error) error {
	if d.reading.Reserve(ctx, holder, 1) != nil {
		return ctx.Err()
	}
	defer d.reading.Release(holder, 1)
	return read()
}

// ReadNow is Read for the follower: it does not wait for other reads.
func (d *DB) ReadNow(ctx context.Context, read func(tx pgx.Tx) error) error {
	return d.readWithin(ctx, BeginRead, read)
}

func (d *DB) readWithin(ctx context.Context, begin string, read func(tx pgx.Tx) error) error {
	return d.Attempt(ctx, func() error {
		err := pgx.BeginTxFunc(ctx, d.Pool, pgx.TxOptions{BeginQuery: begin}, read)
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == queryCanceled {
			err = fmt.Errorf("%w: %w", errTooSlow, err)
		}
		return err
	})
}

// readAttempts is how often a read is tried when its connection fails: after a fail-over, all connections of the pool do.
const readAttempts = 3

// Attempt calls read, and repeats it when its connection fails.
func (d *DB) Attempt(ctx context.Context, read func() error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	for range readAttempts {
		err = read()
		if ended := ctx.Err(); ended != nil {
			return ended
		}
		if errors.Is(err, ErrReplaced) {
			d.Reconnect(err)
		}
		if err == nil || !IsConnectionFailure(err) || store.KindOf(err) != store.KindInternal {
			return Unavailable(err)
		}
		d.Reconnect(err)
	}
	return Unavailable(err)
}

// Reconnect is for a call that has failed. If its connection has, most likely the others have too, and another server may be the
// primary: they are not used again. If none could be made, the others may be good: the server may only be slow. After a
// serialization failure the connection is good.
func (d *DB) Reconnect(failed error) {
	_, isConnect := errors.AsType[*pgconn.ConnectError](failed)
	_, isSearch := errors.AsType[noPrimaryError](failed)
	switch pgErr, ok := errors.AsType[*pgconn.PgError](failed); {
	case isSearch: // the next call searches again
	case isConnect:
		d.hosts.forgetPrimary()
	case !ok || pgErr.Code != serializationFailure:
		d.hosts.distrust(time.Now())
	}
}

// retryPause is how long to wait before a server is asked again that could not be reached.
const retryPause = 100 * time.Millisecond

// Retry repeats what while its connection fails, until ctx ends.
func (d *DB) Retry(ctx context.Context, what func() error) error {
	for {
		err := what()
		if !IsConnectionFailure(err) {
			return err
		}
		d.Reconnect(err)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryPause):
		}
	}
}

// FailOverTimeout bounds calls that are repeated during a fail-over, which takes seconds.
const FailOverTimeout = 30 * time.Second

// RetryFor is Retry with a time limit.
func (d *DB) RetryFor(ctx context.Context, timeout time.Duration, call func(ctx context.Context) error) error {
	working, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return EndedOr(ctx, Unavailable(d.Retry(working, func() error { return call(working) })))
}
