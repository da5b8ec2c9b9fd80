package postgres

import (
	"context"
	"errors"
	"path"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"

	"mtagd/store"
)

// confirmed knows the last flush that is surely on the standbys. A flush is visible before it is there, and other commits are when
// their wait for the standbys was canceled. If such a server is replaced or started again, the commit is gone. And a server that was
// replaced may still answer, without knowing it.
//
// So before a node relies on something that could be gone at the next read, it makes a commit of its own and waits until that is
// on the standbys. Then all that was visible on the same server before is there too: the write-ahead log has it before that commit.
type confirmed struct {
	mu   sync.Mutex // held while the server is asked
	last atomic.Pointer[visible]
}

// visible is the last flush that was visible on a server.
type visible struct {
	server int64 // when it was started, in µs since 1970: its successor was started at another time
	flush  int64
}

// has reports whether all flushes that were visible are on the standbys.
func (c *confirmed) has(v visible) bool {
	last := c.last.Load()
	return last != nil && last.server == v.server && last.flush >= v.flush
}

// note notes that they are.
func (c *confirmed) note(v visible) {
	for {
		before := c.last.Load()
		if c.has(v) || c.last.CompareAndSwap(before, &v) {
			return
		}
	}
}

const (
	// thisServer is visible.server.
	thisServer = `(extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint`

	readVisible = `SELECT ` + thisServer + `, coalesce((SELECT max(seq) FROM flush), 0)`

	// commitMessage commits a message that nobody reads.
	commitMessage = `SELECT ` + thisServer + `, pg_logical_emit_message(true, 'mtagd', '')::text`

	// commitNothing does so, too, and returns the last flush that is visible before.
	commitNothing = readVisible + `, pg_logical_emit_message(true, 'mtagd', '')::text`
)

// confirm returns when all flushes that were visible are on the standbys.
func (e *engine) confirm(ctx context.Context, v visible) error {
	c := &e.confirmed
	if c.has(v) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.has(v) {
		return nil // others have waited for it
	}
	if e.follower.age() > refuseAfter {
		return errNoAnswer // those before have waited for that long
	}
	_, err := e.confirmAll(ctx)
	if err == nil && !c.has(v) {
		err = errReplaced
	}
	if err != nil {
		e.reconnect()
	}
	return unavailable(err)
}

// errReplaced is for what was read from a server that was replaced. Its successor may not have it.
var errReplaced = store.Unavailable("the database was replaced")

// confirmAll returns when all that was visible before the call is on the standbys.
func (e *engine) confirmAll(ctx context.Context) (v visible, err error) {
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return v, err
	}
	defer conn.Release()
	if err := conn.QueryRow(ctx, commitNothing).Scan(&v.server, &v.flush, nil); err != nil {
		return v, err
	}
	if err := checkReplicated(conn.Conn().PgConn()); err != nil {
		return v, err
	}
	e.confirmed.note(v)
	return v, nil
}

// errNotReplicated is the failure of a commit that an operator of the server has kept from waiting for the standbys, or that a worker
// of a distributed database has prepared, but not made yet.
var errNotReplicated = errors.New("the commit is not on all servers yet")

const notReplicated = "mtagd: not replicated"

// whereWorkersFail are the files of Citus whose warnings say that a worker has not answered.
var whereWorkersFail = []string{"remote_transaction.c", "remote_commands.c", "transaction_recovery.c"}

// noteIncompleteCommit notes that the connection's last commit may not be on the standbys or workers. The server only warns of it.
func noteIncompleteCommit(conn *pgconn.PgConn, n *pgconn.Notice) {
	if n.Routine == "SyncRepWaitForLSN" || n.SeverityUnlocalized == "WARNING" && slices.Contains(whereWorkersFail, path.Base(n.File)) {
		conn.CustomData()[notReplicated] = true
	}
}

// checkReplicated returns an error if the commit of a connection may not be on the standbys or workers. To the caller, its answer is lost.
func checkReplicated(conn *pgconn.PgConn) error {
	if conn.CustomData()[notReplicated] != nil {
		delete(conn.CustomData(), notReplicated)
		return errNotReplicated
	}
	return nil
}
