package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mtagd/store"
)

// The times of a change of control data. Together they are less than what callers wait for an answer.
const (
	changeTimeout       = 5 * time.Second  // for a change, with the wait for its turn
	settleChangeTimeout = 10 * time.Second // to find out what became of a change whose answer was lost
)

// change is one change of the control data, in one transaction. All changes of all nodes follow each other.
type change struct {
	e   *engine
	ctx context.Context
	tx  pgx.Tx
	id  uuid.UUID // of the transaction
	now time.Time // UTC

	last      int64              // the number of the last entry of the table change
	audited   []store.AuditEntry // what is added to the audit log
	entries   []entry            // what nodes must know of the changes that this node does not know yet, this one included
	published bool               // some of them are of this change
	failed    error              // of the first statement that failed
	together  *pgx.Batch         // of inOneTrip; nil otherwise
}

// change makes a change. build reads what it needs to know, and writes; after an error nothing is changed. When change returns
// nil, the directory of this node has the change.
func (e *engine) change(ctx context.Context, build func(c *change) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	caller := ctx
	ctx, cancel := context.WithTimeout(caller, changeTimeout)
	defer cancel()
	// All changes of all nodes wait for each other. They do it here, without a connection: flushes and the follower need these.
	select {
	case e.changing <- struct{}{}:
		defer func() { <-e.changing }()
	case <-ctx.Done():
		return endedOr(caller, errManyChanges)
	}
	// A caller that goes away while the commit is under way must not hide what has become of it.
	working, cancelWork := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancelWork()
	conn, tx, err := e.beginChange(ctx)
	if isConnectionFailure(err) && ctx.Err() == nil {
		e.reconnect(err)
		conn, tx, err = e.beginChange(ctx)
	}
	if err != nil {
		return endedOr(caller, unavailable(err))
	}
	defer conn.Release() // which closes a connection with an open transaction
	c := &change{e: e, ctx: ctx, tx: tx, id: uuid.New()}
	if err = c.begin(); err == nil {
		err = build(c)
	}
	if err == nil {
		err = c.failed
	}
	if err != nil {
		_ = tx.Rollback(working) // it ends with its connection otherwise
		return endedOr(caller, unavailable(err))
	}
	if err = tx.Commit(working); err == nil {
		err = checkReplicated(conn.Conn().PgConn())
	}
	conn.Release() // what comes now may need another one
	if err != nil && isConnectionFailure(err) {
		err = e.settleChange(c, err)
	}
	if err != nil {
		return unavailable(err)
	}
	store.LogAudit(e.log, c.audited)
	return e.follower.apply(c.entries)
}

var errManyChanges = store.Unavailable("too many changes wait for their turn")

// beginChange begins the transaction of a change, on a connection that the caller releases.
func (e *engine) beginChange(ctx context.Context) (conn *pgxpool.Conn, tx pgx.Tx, err error) {
	if conn, err = e.pool.Acquire(ctx); err != nil {
		return nil, nil, err
	}
	if tx, err = conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: begin}); err != nil {
		conn.Release()
		return nil, nil, err
	}
	return conn, tx, nil
}

// endedOr returns the error of a context that has ended, else err.
func endedOr(ctx context.Context, err error) error {
	if ended := ctx.Err(); ended != nil {
		return ended
	}
	return err
}

// begin waits for the turn of the change, and reads what other nodes have changed meanwhile.
func (c *change) begin() error {
	if _, err := c.tx.Exec(c.ctx, "SELECT pg_advisory_xact_lock($1)", lockControl); err != nil {
		return err
	}
	if err := c.tx.QueryRow(c.ctx, "SELECT clock_timestamp(), coalesce(max(seq), 0) FROM change").Scan(&c.now, &c.last); err != nil {
		return err
	}
	if c.now = c.now.UTC(); c.e.now != nil {
		c.now = c.e.now().UTC()
	}
	known := c.e.follower.position()
	entries, err := readEntries(c.ctx, c.tx, known)
	if err == nil && int64(len(entries)) != c.last-known {
		err = errMissed
	}
	c.entries = entries
	return err
}

// settleChange finds out whether a change was committed whose answer is lost. As it waits for its turn, the transaction has
// ended then.
func (e *engine) settleChange(c *change, lost error) error {
	uncertain := store.Uncertain("it is not known whether the change was made")
	if !c.published {
		return fmt.Errorf("%w: %w", uncertain, lost) // it has left no trace that could be looked for
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleChangeTimeout)
	defer cancel()
	committed := false
	err := e.retry(ctx, func() error {
		return e.transact(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", lockControl); err != nil {
				return err
			}
			// It writes, so that its commit waits for the standbys, to which the change may not have got.
			done, err := tx.Exec(ctx, "UPDATE change SET tx = tx WHERE tx = $1", c.id)
			committed = done.RowsAffected() > 0
			return err
		})
	})
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w: %w", uncertain, lost, err)
	case !committed:
		return unavailable(lost)
	}
	return nil
}

// retryPause is how long to wait before a server is asked again that could not be reached.
const retryPause = 100 * time.Millisecond

// retry calls what until it does not fail for its connection, or ctx ends.
func (e *engine) retry(ctx context.Context, what func() error) error {
	for {
		err := what()
		if !isConnectionFailure(err) {
			return err
		}
		e.reconnect(err)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryPause):
		}
	}
}

// exec runs a statement. After the first one that fails, none runs, and the change fails.
func (c *change) exec(sql string, args ...any) {
	switch {
	case c.failed != nil:
	case c.together != nil:
		c.together.Queue(sql, args...)
	default:
		_, c.failed = c.tx.Exec(c.ctx, sql, args...)
	}
}

// inOneTrip sends the statements that do executes together: where there are thousands, all changes would wait for their round trips.
func (c *change) inOneTrip(do func() error) error {
	c.together = new(pgx.Batch)
	err := do()
	statements := c.together
	if c.together = nil; err == nil && c.failed == nil {
		c.failed = c.tx.SendBatch(c.ctx, statements).Close()
	}
	return cmp.Or(err, c.failed)
}

// publish tells all nodes of a record that is new, has changed or was deleted.
func (c *change) publish(kind entryKind, record any) {
	if c.failed != nil {
		return
	}
	text, err := json.Marshal(record)
	if err != nil {
		c.failed = err
		return
	}
	c.last++
	c.exec("INSERT INTO change (seq, tx, kind, record) VALUES ($1, $2, $3, $4)", c.last, c.id, string(kind), text)
	c.entries = append(c.entries, entry{c.last, kind, text})
	c.published = true
}

// encode returns a record as it is stored. Records always can be encoded, as they came from JSON or from strings and numbers.
func (c *change) encode(record any) []byte {
	text, err := json.Marshal(record)
	if err != nil && c.failed == nil {
		c.failed = err
	}
	return text
}

// decode reads a stored record.
func decode[T any](text []byte) (v T, err error) {
	if err = json.Unmarshal(text, &v); err != nil {
		err = fmt.Errorf("a stored %T cannot be read: %w", v, err)
	}
	return v, err
}

// find returns a record that a statement selects. KindNotFound: none, and what names it.
func find[T any](ctx context.Context, tx pgx.Tx, what, sql string, args ...any) (v T, err error) {
	var text []byte
	err = tx.QueryRow(ctx, sql, args...).Scan(&text)
	if err == pgx.ErrNoRows {
		return v, store.NotFound(what)
	}
	if err != nil {
		return v, err
	}
	return decode[T](text)
}

// list returns the records that a statement selects.
func list[T any](ctx context.Context, tx pgx.Tx, sql string, args ...any) (all []T, err error) {
	err = query(ctx, tx, func(rows pgx.Rows) error {
		var text []byte
		if err := rows.Scan(&text); err != nil {
			return err
		}
		v, err := decode[T](text)
		all = append(all, v)
		return err
	}, sql, args...)
	return all, err
}
