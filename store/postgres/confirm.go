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

// confirmed knows the last flush that is surely on the standbys. A commit may be visible before it is there: when the wait for
// the standbys was canceled, and after the server was started again. If such a server is replaced, the commit is gone. And a
// server that was replaced may still answer, without knowing it.
//
// So before a node relies on something that could be gone at the next read, it makes a commit of its own and waits until that is
// on the standbys. Then all that was visible before is there too.
type confirmed struct {
	mu    sync.Mutex // held while the server is asked
	flush atomic.Int64
}

// commitNothing commits a message that nobody reads. It returns the last flush that is visible before.
const commitNothing = `SELECT coalesce((SELECT max(seq) FROM flush), 0), pg_logical_emit_message(true, 'mtagd', '')::text`

// confirm returns when all flushes up to a number are on the standbys.
func (e *engine) confirm(ctx context.Context, flush int64) error {
	c := &e.confirmed
	if c.flush.Load() >= flush {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.flush.Load() >= flush {
		return nil // others have waited for it
	}
	if err := e.confirmAll(ctx); err != nil {
		return err
	}
	if c.flush.Load() < flush {
		return errReplaced
	}
	return nil
}

// errReplaced is for a flush that was read from a server which was replaced. Its successor does not have it.
var errReplaced = store.Unavailable("the database was replaced")

// confirmAll returns when all that was visible before the call is on the standbys.
func (e *engine) confirmAll(ctx context.Context) error {
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var flush int64
	var position string
	if err := conn.QueryRow(ctx, commitNothing).Scan(&flush, &position); err != nil {
		return err
	}
	if err := checkReplicated(conn.Conn().PgConn()); err != nil {
		return err
	}
	for {
		before := e.confirmed.flush.Load()
		if flush <= before || e.confirmed.flush.CompareAndSwap(before, flush) {
			return nil
		}
	}
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
