// Package control keeps the control data: it implements the driver of package rules. It stores records, the audit log and
// documents, and follows the changes of all nodes.
//
//	control.go    changes of the control data
//	follow.go     loads all control data, and follows the changes of all nodes
//	audit.go      the audit log, and the deletion of old entries
//	documents.go  documents, which no node follows
//	scope.go      which events of a merchant answers may have
package control

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/rules"
)

// The times of a change of control data. Together they are less than what callers wait for an answer.
const (
	changeTimeout       = 5 * time.Second  // for a change, with the wait for its turn
	settleChangeTimeout = 10 * time.Second // to find out what became of a change whose answer was lost
)

// Control is the control data of a database, in memory.
type Control struct {
	*rules.Data

	// News is called with the merchants for which other nodes have recorded events.
	News func(merchants []uuid.UUID)

	db       *conn.DB
	changing chan struct{} // has a value while a change is under way
	follower follower

	auditLimits  store.AuditLimits
	auditDropped int                                      // the last entry when Tidy last dropped some; only Tidy uses it
	auditFull    atomic.Pointer[map[store.PartnerID]bool] // whose changes are refused
}

// Load loads the control data of a database. Follow keeps it up to date.
func Load(ctx context.Context, db *conn.DB, limits store.AuditLimits) (*Control, error) {
	c := &Control{db: db, changing: make(chan struct{}, 1), auditLimits: limits, News: func([]uuid.UUID) {}}
	c.auditFull.Store(&map[store.PartnerID]bool{})
	return c, c.loadAll(ctx)
}

// Driver implements rules.Driver.
type Driver struct{ *Control }

// Update implements rules.Driver.
func (d Driver) Update(ctx context.Context, build func(rules.Turn) (rules.Change, error)) error {
	return d.makeChange(ctx, func(c *change) error {
		made, err := build(rules.Turn{Now: c.now, LastEntry: c.lastEntry})
		if err != nil {
			return err
		}
		for _, e := range made.Entries {
			if (*d.auditFull.Load())[e.Holder()] && e.MayBeRefused() {
				return store.ErrAuditFull
			}
		}
		return c.writeRecords(made)
	})
}

// Now implements rules.Driver. While the standbys do not have what is new, the memory is as it was before that.
func (d Driver) Now(ctx context.Context) (now time.Time, err error) {
	err = d.db.InTurn(ctx, string(store.PartnerOf(ctx)), func() error {
		return d.db.Attempt(ctx, func() (err error) {
			now, err = d.Time(ctx, d.db.Pool)
			return err
		})
	})
	return now, err
}

// Time returns the time for decisions: the database's, or that of a test. After it, the memory has all changes up to that
// time.
func (c *Control) Time(ctx context.Context, tx interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}) (now time.Time, err error) {
	var last int64
	if err := tx.QueryRow(ctx, "SELECT clock_timestamp(), coalesce(max(seq), 0) FROM change").Scan(&now, &last); err != nil {
		return now, err
	}
	if c.db.Now != nil {
		now = c.db.Now()
	}
	c.catchUpTo(ctx, last)
	return now.UTC(), ctx.Err()
}

// catchUpTo puts changes up to one into memory, if follow has not yet. It gives up where follow fails too, which logs why.
func (c *Control) catchUpTo(ctx context.Context, last int64) {
	if last <= c.follower.lastApplied() {
		return
	}
	c.follower.catching.Lock()
	defer c.follower.catching.Unlock()
	if last <= c.follower.lastApplied() || c.db.Age() > conn.RefuseAfter { // another call has caught up, or has failed to
		return
	}
	ctx, cancel := context.WithTimeout(ctx, FollowTimeout)
	defer cancel()
	_, _ = c.CatchUp(ctx, func(pgx.Tx) error { return nil })
}

// change is one change of the control data, in one transaction. All changes of all nodes follow each other.
type change struct {
	of  *Control
	ctx context.Context
	tx  pgx.Tx
	id  uuid.UUID // of the transaction
	now time.Time // UTC

	seen      conn.Snapshot // when its turn began
	last      int64         // the number of the last change before this one
	lastEntry store.AuditID // of the audit log
	records   []Record      // that the change writes, with its number
	written   bool
}

// makeChange makes a change. build reads and writes in its transaction; after an error nothing is changed. When makeChange
// returns nil, the memory of this node has the change.
func (c *Control) makeChange(ctx context.Context, build func(c *change) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	caller := ctx
	ctx, cancel := context.WithTimeout(caller, changeTimeout)
	defer cancel()
	// All changes of all nodes wait for each other. They do it here, without a connection: flushes and the follower need
	// these.
	select {
	case c.changing <- struct{}{}:
		defer func() { <-c.changing }()
	case <-ctx.Done():
		return conn.EndedOr(caller, errManyChanges)
	}
	// A caller that goes away while the commit is under way must not hide what has become of it.
	working, cancelWork := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancelWork()
	session, tx, err := c.beginChange(ctx)
	if conn.IsConnectionFailure(err) && ctx.Err() == nil {
		c.db.Reconnect(err)
		session, tx, err = c.beginChange(ctx)
	}
	if err != nil {
		return conn.EndedOr(caller, conn.Unavailable(err))
	}
	defer session.Release() // closes the connection if the transaction is still open
	made := &change{of: c, ctx: ctx, tx: tx, id: uuid.New()}
	if err = made.takeTurn(); err == nil {
		err = build(made)
	}
	if err != nil || !made.written {
		_ = tx.Rollback(working) // it ends with its connection otherwise
		session.Release()
		if kind := store.KindOf(err); err == nil || kind != store.KindInternal && kind != store.KindUnavailable {
			// After a fail-over, the old primary may still say what was true before: that the change is not allowed, or was
			// already made. It can make no commit.
			err = cmp.Or(c.db.ConfirmNow(ctx, made.seen), err)
		}
		return conn.EndedOr(caller, conn.Unavailable(err))
	}
	if err = tx.Commit(working); err == nil {
		err = conn.CheckReplicated(session.Conn().PgConn())
	}
	session.Release() // settle may need another connection
	if err != nil && conn.IsConnectionFailure(err) {
		err = made.settle(err)
	}
	if err != nil {
		return conn.Unavailable(err)
	}
	return c.follower.applyRecords(made.last+1, made.records)
}

var errManyChanges = store.Unavailable("too many changes wait for their turn")

// beginChange begins the transaction of a change, on a connection that the caller releases.
func (c *Control) beginChange(ctx context.Context) (session *pgxpool.Conn, tx pgx.Tx, err error) {
	if session, err = c.db.Pool.Acquire(ctx); err != nil {
		return nil, nil, err
	}
	if tx, err = session.BeginTx(ctx, pgx.TxOptions{BeginQuery: conn.Begin}); err != nil {
		session.Release()
		return nil, nil, err
	}
	return session, tx, nil
}

// takeTurn waits for the turn of the change. Then it applies the other nodes' changes to memory, once the standbys have
// them.
func (c *change) takeTurn() error {
	if _, err := c.tx.Exec(c.ctx, "SELECT pg_advisory_xact_lock($1)", conn.LockControl); err != nil {
		return err
	}
	if err := c.seen.ReadFrom(c.tx.QueryRow(c.ctx, conn.ReadSnapshot+", clock_timestamp(), coalesce((SELECT max(id) FROM audit), 0)"), &c.now, &c.lastEntry); err != nil {
		return err
	}
	if c.last, c.now = c.seen.Change, c.now.UTC(); c.of.db.Now != nil {
		c.now = c.of.db.Now().UTC()
	}
	u := update{seen: c.seen}
	if err := u.readChanges(c.ctx, c.tx, c.of.follower.lastApplied()); err != nil {
		return err
	}
	if len(u.records) > 0 {
		if err := c.of.db.ConfirmNow(c.ctx, c.seen); err != nil {
			return notOnStandbys(err)
		}
	}
	return c.of.follower.applyUpdate(&u)
}

// writeRecords writes the records and entries of a change in one round trip.
func (c *change) writeRecords(made rules.Change) error {
	if len(made.Records)+len(made.Entries) == 0 {
		return nil
	}
	b := &pgx.Batch{}
	b.Queue("INSERT INTO change (seq, tx, kind, record) VALUES ($1, $2, '"+ChangeOfRecords+"', '{}')", c.last+1, c.id)
	QueueRecords(b, c.last+1, made.Records)
	if err := QueueEntries(b, made.Entries); err != nil {
		return err
	}
	if err := c.tx.SendBatch(c.ctx, b).Close(); err != nil {
		return err
	}
	for _, r := range made.Records {
		c.records = append(c.records, Record{r, c.last + 1})
	}
	c.written = true
	return nil
}

// ChangeOfRecords is a kind of row in the table change. Nodes of the previous version do not know it, and stop being ready.
const ChangeOfRecords = "records"

// QueueRecords writes records with the number of their change.
func QueueRecords(b *pgx.Batch, version int64, records []rules.Record) {
	b.Queue(`INSERT INTO record (kind, id, version, body) SELECT w.kind, w.id, $1::bigint, w.body FROM unnest($2::text[], $3::text[], $4::text[]) AS w(kind, id, body)
		ON CONFLICT (kind, id) DO UPDATE SET version = excluded.version, body = excluded.body`, version,
		conn.Map(records, func(r *rules.Record) string { return r.Kind }), conn.Map(records, func(r *rules.Record) string { return r.Key }),
		conn.Map(records, func(r *rules.Record) *string {
			if r.Value == nil {
				return nil
			}
			return new(string(r.Value))
		}))
}

// settle finds out whether a change was committed after the answer to COMMIT is lost. It waits for the lock, so the
// transaction has ended by then.
func (c *change) settle(lost error) error {
	uncertain := store.Uncertain("it is not known whether the change was made")
	ctx, cancel := context.WithTimeout(context.Background(), settleChangeTimeout)
	defer cancel()
	committed := false
	err := c.of.db.Retry(ctx, func() error {
		return c.of.db.Transact(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", conn.LockControl); err != nil {
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
		return conn.Unavailable(lost)
	}
	return nil
}
