package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"mtagd/store"
	"mtagd/store/budget"
)

const (
	connectTimeout = 5 * time.Second
	defaultConns   = 16 // unless the address says pool_max_conns
)

// parseURL returns the configuration of the connections. The address may name several servers: the one that accepts writes is
// used.
func parseURL(address string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, err // without the password
	}
	if !strings.Contains(address, "pool_max_conns") {
		config.MaxConns = defaultConns
	}
	if !strings.Contains(address, "target_session_attrs") {
		config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = connectTimeout
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "mtagd"
	}
	config.ConnConfig.OnNotice = noteIncompleteCommit
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		encodeFast(conn.TypeMap())
		return nil
	}
	return config, nil
}

// adaptToPooler avoids named statements behind a pooler such as PgBouncer: it may run each transaction on another connection to the
// server, which does not know the statements of the one before. An address with default_query_exec_mode is left as it is.
func adaptToPooler(ctx context.Context, address string, config *pgxpool.Config) error {
	if strings.Contains(address, "default_query_exec_mode") {
		return nil
	}
	pooled, err := isPooler(ctx, config)
	if pooled {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	return err
}

// isPooler reports whether connections lead to a pooler: it announces a process that is not the one that runs the statements.
func isPooler(ctx context.Context, config *pgxpool.Config) (pooled bool, err error) {
	once := config.ConnConfig.Copy()
	once.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(ctx, once)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	var pid uint32
	err = conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid)
	return pid != conn.PgConn().PID(), err
}

// checkDurability refuses a server whose commits do not wait until they are durable. If that is set later, flushes and changes wait all the
// same (durably).
func checkDurability(ctx context.Context, pool *pgxpool.Pool) error {
	var level string
	if err := pool.QueryRow(ctx, "SHOW synchronous_commit").Scan(&level); err != nil {
		return err
	}
	if level == "off" || level == "local" {
		return fmt.Errorf("synchronous_commit is %s in the database: events would be acknowledged before they are durable. Set it to on", level)
	}
	return nil
}

// isConnectionFailure reports whether the server cannot be reached, has ended the connection, or accepts no writes: the same
// call may succeed with another connection. After a serialization failure, it may succeed with the same one.
func isConnectionFailure(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		switch class := pgErr.Code[:2]; {
		case pgErr.SeverityUnlocalized == "FATAL" || pgErr.SeverityUnlocalized == "PANIC":
			return true // the server has ended the connection
		case class == "08", class == "57" && pgErr.Code != queryCanceled, pgErr.Code == "25006", pgErr.Code == "53300",
			pgErr.Code == serializationFailure:
			return true // connection failure, shutdown, read-only (a standby), too many connections, serialization failure
		}
		return false
	}
	_, isNet := errors.AsType[net.Error](err)
	_, isConnect := errors.AsType[*pgconn.ConnectError](err)
	return isNet || isConnect || pgconn.SafeToRetry(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errNotReplicated)
}

const (
	queryCanceled        = "57014" // the SQLSTATE of a statement that was canceled
	serializationFailure = "40001" // the SQLSTATE of a transaction that the server gave up, for example on a standby that is being promoted
)

// unavailable adds KindUnavailable to an error for which nothing was changed, if another call may succeed.
func unavailable(err error) error {
	if store.KindOf(err) != store.KindInternal {
		return err
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code[:2] == insufficientResources {
		return fmt.Errorf("%w: %w", store.Unavailable("the database has no room"), err)
	}
	if isConnectionFailure(err) {
		return fmt.Errorf("%w: %w", store.Unavailable("the database cannot be reached"), err)
	}
	return err
}

// insufficientResources is the class of the SQLSTATEs of a server whose disk is full, or that has too little memory.
const insufficientResources = "53"

// readAttempts is how often a read is tried when its connection fails: after a fail-over, all connections of the pool do.
const readAttempts = 3

// reconnect closes the idle connections after one has failed: most likely they have failed too, and the primary may be another server.
// After a serialization failure it does nothing, as the connection is good, unless that has kept it from being made: then the server is
// a standby, or was one.
func (e *engine) reconnect(failed error) {
	_, isConnect := errors.AsType[*pgconn.ConnectError](failed)
	if pgErr, ok := errors.AsType[*pgconn.PgError](failed); ok && pgErr.Code == serializationFailure && !isConnect {
		return
	}
	e.hosts.forget()
	e.pool.Reset()
}

// begin begins a transaction that writes. The server ends it when the node goes away or stops in the middle of it, so that its locks
// are free again.
const begin = "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = '5s'; SELECT " + waitForStandbys

// transact makes a transaction that writes. When it returns nil, the standbys have it.
func (e *engine) transact(ctx context.Context, write func(tx pgx.Tx) error) error {
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // after the check: others have the connection then
	if err := pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{BeginQuery: begin}, write); err != nil {
		return err
	}
	return checkReplicated(conn.Conn().PgConn())
}

// beginRead begins a transaction that reads. Compiling its statements (jit) would take longer than running them. Sequential scans are
// off: the planner chooses one while a table is small, and keeps that plan until the server analyzes the table, perhaps millions of
// rows later. With Citus, both hold on the coordinator only: turnOffJIT is for the workers.
//
// No statement may run for ever. Background work reads more at once than a query of a partner may.
const (
	beginSnapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL jit = off; SET LOCAL enable_seqscan = off; "
	beginRead     = beginSnapshot + "SET LOCAL statement_timeout = '10min'"
	beginQuery    = beginSnapshot + "SET LOCAL statement_timeout = '20s'"
)

// reserved is how many connections reads leave to events, to changes and to the follower. Slow reads must not keep these waiting:
// the node would take it that the database does not answer.
const reserved = 4

// newReads returns the budget of reads. Its holders take turns, and one may have at most half of them under way: each partner; each
// merchant, for the look-ups of its tag hosts; and the service itself (""), for what it reads in the background.
func newReads(config *pgxpool.Config) *budget.Budget[string] {
	total := max(int64(config.MaxConns)-reserved, 1)
	return budget.New(total, func(string) int64 { return max(total/2, 1) }).Fair()
}

// read reads in one transaction, as of one moment. read may be called again after a failure of the connection. When too many reads
// are under way, it waits.
func (e *engine) read(ctx context.Context, read func(tx pgx.Tx) error) error {
	if partner := store.PartnerOf(ctx); partner != "" {
		return e.readFor(ctx, string(partner), read)
	}
	return e.readLong(ctx, read)
}

// readLong is read with the timeout of background work, for whoever asks.
func (e *engine) readLong(ctx context.Context, read func(tx pgx.Tx) error) error {
	return e.inTurn(ctx, string(store.PartnerOf(ctx)), func() error { return e.readNow(ctx, read) })
}

// readFor is read for a holder of the budget other than the service itself: it must end soon.
func (e *engine) readFor(ctx context.Context, holder string, read func(tx pgx.Tx) error) error {
	return e.inTurn(ctx, holder, func() error {
		until := time.Now().Add(e.queryTimeout)
		return e.readWithin(ctx, beginQuery, func(tx pgx.Tx) error { return read(timed{tx, until}) })
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

// inTurn waits while too many reads are under way, and then calls read.
func (e *engine) inTurn(ctx context.Context, holder string, read func() error) error {
	if e.reading.Reserve(ctx, holder, 1) != nil {
		return ctx.Err()
	}
	defer e.reading.Release(holder, 1)
	return read()
}

// readNow is read for the follower, which waits for no other reads.
func (e *engine) readNow(ctx context.Context, read func(tx pgx.Tx) error) error {
	return e.readWithin(ctx, beginRead, read)
}

func (e *engine) readWithin(ctx context.Context, begin string, read func(tx pgx.Tx) error) error {
	return e.attempt(ctx, func() error {
		err := pgx.BeginTxFunc(ctx, e.pool, pgx.TxOptions{BeginQuery: begin}, read)
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == queryCanceled {
			err = fmt.Errorf("%w: %w", errTooSlow, err)
		}
		return err
	})
}

// attempt calls read again when its connection fails.
func (e *engine) attempt(ctx context.Context, read func() error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	for range readAttempts {
		err = read()
		if ended := ctx.Err(); ended != nil {
			return ended
		}
		if errors.Is(err, errReplaced) {
			e.reconnect(err)
		}
		if err == nil || !isConnectionFailure(err) || store.KindOf(err) != store.KindInternal {
			return unavailable(err)
		}
		e.reconnect(err)
	}
	return unavailable(err)
}

// querier is a transaction, or the pool when one statement is enough.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// query calls use with each row of a statement.
func query(ctx context.Context, tx querier, use func(rows pgx.Rows) error, sql string, args ...any) error {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := use(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// listMerchants returns the merchants that a statement selects, its only column.
func listMerchants(ctx context.Context, tx querier, sql string, args ...any) (merchants []uuid.UUID, err error) {
	err = query(ctx, tx, func(rows pgx.Rows) error {
		var m uuid.UUID
		err := rows.Scan(&m)
		merchants = append(merchants, m)
		return err
	}, sql, args...)
	return merchants, err
}

// keyOf returns a partner's or merchant's id as the database has it; false when it is not in the form that ids have, so that
// nothing has it.
func keyOf[ID ~string](id ID) (uuid.UUID, bool) {
	key, err := uuid.Parse(string(id))
	return key, err == nil && key.String() == string(id)
}

// isStorable reports whether a text can be stored: a text that cannot is the id or name of nothing.
func isStorable[T ~string](text T) bool {
	return utf8.ValidString(string(text)) && !strings.ContainsRune(string(text), 0)
}
