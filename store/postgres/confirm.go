package postgres

import (
	"context"
	"errors"
	"path"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mtagd/store"
)

// confirmed knows what is on the standbys for certain. A flush is visible before it is there. So is any other commit whose wait for the
// standbys was canceled. If the server crashes or is replaced, such a commit is lost. And a server that was replaced may still answer,
// because it does not know.
//
// So before a node relies on something that could be gone at the next read, it makes a commit of its own and waits until that is
// on the standbys. Everything that was visible on the same server before precedes that commit in the write-ahead log, so it is there too.
type confirmed struct {
	mu   sync.Mutex // held while the server is asked
	last atomic.Pointer[snapshot]
}

// snapshot says what a read saw: the last flush and the last change, and on which server.
type snapshot struct {
	server int64 // thisServer
	flush  int64
	change int64 // 0: the read depends on no change
}

// covers reports whether everything that the other snapshot saw was visible in this one, and nothing of it was lost in between.
func (s snapshot) covers(other snapshot) bool {
	return s.server == other.server && s.flush >= other.flush && s.change >= other.change
}

// scan reads a row that begins with readSnapshot.
func (s *snapshot) scan(row pgx.Row, more ...any) error {
	return row.Scan(append([]any{&s.server, &s.flush, &s.change}, more...)...)
}

// covers reports whether everything that a snapshot saw is on the standbys.
func (c *confirmed) covers(s snapshot) bool {
	last := c.last.Load()
	return last != nil && last.covers(s)
}

// note notes that everything a snapshot saw is on the standbys.
func (c *confirmed) note(s snapshot) {
	for {
		before := c.last.Load()
		if c.covers(s) || c.last.CompareAndSwap(before, &s) {
			return
		}
	}
}

const (
	// thisServer is a number that changes when commits that were visible may have been lost:
	//
	//   - Another server takes over. It was started at another time.
	//   - The server crashes, as when one of its processes is killed or it has no room for its log. It ends all connections and recovers
	//     from the log, but its start time stays the same. The recovery resets the statistics, so their time of reset changes.
	//
	// Somebody who resets these statistics by hand makes some requests fail. They succeed when they are sent again.
	thisServer = `((extract(epoch FROM pg_postmaster_start_time()) + extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time())) * 1000000)::bigint`

	readSnapshot = `SELECT ` + thisServer + `, coalesce((SELECT max(seq) FROM flush), 0), coalesce((SELECT max(seq) FROM change), 0)`

	// commitNothing commits a message that nobody reads, and returns what was visible before. It waits for the standbys.
	commitNothing = readSnapshot + `, pg_logical_emit_message(true, 'mtagd', '')::text, ` + waitForStandbys

	// durably is the synchronous_commit of what must not be lost. It is the operator's setting if that waits for the standbys, or else
	// on. A node does not start with off or local, but the role, a promoted server or a pooler's connection may have these later.
	durably = `CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on' ELSE current_setting('synchronous_commit') END`

	// waitForStandbys makes the commit of its transaction wait for the standbys.
	waitForStandbys = `set_config('synchronous_commit', ` + durably + `, true)`
)

// confirm returns when everything that a snapshot saw is on the standbys.
func (e *engine) confirm(ctx context.Context, s snapshot) error {
	c := &e.confirmed
	if c.covers(s) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.covers(s):
		return nil // others have waited for it
	case ctx.Err() != nil:
		return ctx.Err() // the caller went away meanwhile
	case e.follower.age() > refuseAfter:
		return errNoAnswer // the callers before this one have waited for that long
	}
	return e.confirmNow(ctx, s)
}

// confirmNow is confirm, but always makes a commit. So it fails when commits do not reach the standbys.
func (e *engine) confirmNow(ctx context.Context, s snapshot) error {
	got, err := e.confirmAll(ctx)
	if err == nil && !got.covers(s) {
		err = errReplaced
	}
	// If the caller went away, that is the reason for the error, and the connections are good.
	if ctx.Err() == nil && (isConnectionFailure(err) || errors.Is(err, errReplaced)) {
		e.reconnect(err)
	}
	return unavailable(err)
}

// errReplaced refuses what was read from a server that has crashed or was replaced since: it may be lost.
var errReplaced = store.Unavailable("the database was replaced")

// confirmAll returns when all that was visible before the call is on the standbys. s says what that is.
func (e *engine) confirmAll(ctx context.Context) (s snapshot, err error) {
	conn, err := e.pool.Acquire(ctx)
	if err != nil {
		return s, err
	}
	defer conn.Release()
	if err := s.scan(conn.QueryRow(ctx, commitNothing), nil, nil); err != nil {
		return s, err
	}
	if err := checkReplicated(conn.Conn().PgConn()); err != nil {
		return s, err
	}
	e.confirmed.note(s)
	return s, nil
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
