package conn

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

// confirmed knows what is on the standbys for certain. A flush is visible before it is there. So is any other commit whose
// wait for the standbys was canceled. If the server crashes or is replaced, such a commit is lost. And a server that was
// replaced may still answer, because it does not know.
//
// So before a node relies on something that could be gone at the next read, it makes a commit of its own and waits until
// that is on the standbys. Everything that was visible on the same server before precedes that commit in the write-ahead
// log, so it is there too.
type confirmed struct {
	mu   sync.Mutex // held while the server is asked
	last atomic.Pointer[Snapshot]
}

// Snapshot identifies what a read saw: the server, its last flush and its last change.
type Snapshot struct {
	Server int64 // ThisServer
	Flush  int64
	Change int64 // 0: the read does not depend on changes
}

// covers reports whether everything that the other snapshot saw was visible in this one, and nothing of it was lost in
// between.
func (s Snapshot) covers(other Snapshot) bool {
	return s.Server == other.Server && s.Flush >= other.Flush && s.Change >= other.Change
}

// ReadFrom reads a row that begins with ReadSnapshot.
func (s *Snapshot) ReadFrom(row pgx.Row, more ...any) error {
	return row.Scan(append([]any{&s.Server, &s.Flush, &s.Change}, more...)...)
}

// IsConfirmed reports whether everything that a snapshot saw is known to be on the standbys.
func (d *DB) IsConfirmed(s Snapshot) bool {
	last := d.confirmed.last.Load()
	return last != nil && last.covers(s)
}

// NoteConfirmed records that everything that a snapshot saw is on the standbys.
func (d *DB) NoteConfirmed(s Snapshot) {
	for {
		before := d.confirmed.last.Load()
		if d.IsConfirmed(s) || d.confirmed.last.CompareAndSwap(before, &s) {
			return
		}
	}
}

const (
	// ThisServer is a number that changes when commits that were visible may have been lost:
	//
	//   - Another server takes over. It was started at another time.
	//   - The server crashes, for example because one of its processes is killed or its log has no space. It ends all
	//     connections and recovers from the log. Its start time stays the same, but the recovery resets the statistics, so
	//     their reset time changes.
	//
	// Resetting these statistics by hand makes some requests fail. They succeed when they are repeated.
	ThisServer = `((extract(epoch FROM pg_postmaster_start_time()) + extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time())) * 1000000)::bigint`

	ReadSnapshot = `SELECT ` + ThisServer + `, coalesce((SELECT max(seq) FROM flush), 0), coalesce((SELECT max(seq) FROM change), 0)`

	// CommitNothing commits a message that nobody reads, and returns the snapshot before it. The commit waits for the
	// standbys.
	CommitNothing = ReadSnapshot + `, pg_logical_emit_message(true, 'mtagd', '')::text, ` + waitForStandbys

	// Durably is the synchronous_commit of transactions that must not be lost: the operator's setting, or on if that is off
	// or local, which do not wait for the standbys. A node does not start with off or local, but the role, a promoted server
	// or a pooler's connection may get them later.
	Durably = `CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on' ELSE current_setting('synchronous_commit') END`

	// waitForStandbys makes the commit of its transaction wait for the standbys.
	waitForStandbys = `set_config('synchronous_commit', ` + Durably + `, true)`
)

// Confirm returns when everything that a snapshot saw is on the standbys.
func (d *DB) Confirm(ctx context.Context, s Snapshot) error {
	if d.IsConfirmed(s) {
		return nil
	}
	d.confirmed.mu.Lock()
	defer d.confirmed.mu.Unlock()
	switch {
	case d.IsConfirmed(s):
		return nil // others have waited for it
	case ctx.Err() != nil:
		return ctx.Err() // the caller went away meanwhile
	case d.Age() > RefuseAfter:
		return ErrNoAnswer // the callers before this one have waited for that long
	}
	return d.ConfirmNow(ctx, s)
}

// ConfirmNow is Confirm, but always makes a commit. So it fails when commits do not reach the standbys.
func (d *DB) ConfirmNow(ctx context.Context, s Snapshot) error {
	got, err := d.ConfirmAll(ctx)
	if err == nil && !got.covers(s) {
		err = ErrReplaced
	}
	// If the caller went away, that is the reason for the error, and the connections are good.
	if ctx.Err() == nil && (IsConnectionFailure(err) || errors.Is(err, ErrReplaced)) {
		d.Reconnect(err)
	}
	return Unavailable(err)
}

// ErrReplaced: the server has crashed or was replaced since the read, so what was read may be lost.
var ErrReplaced = store.Unavailable("the database was replaced")

// ConfirmAll returns when everything that was visible before the call is on the standbys. s is the snapshot of that.
func (d *DB) ConfirmAll(ctx context.Context) (s Snapshot, err error) {
	conn, err := d.Pool.Acquire(ctx)
	if err != nil {
		return s, err
	}
	defer conn.Release()
	if err := s.ReadFrom(conn.QueryRow(ctx, CommitNothing), nil, nil); err != nil {
		return s, err
	}
	if err := CheckReplicated(conn.Conn().PgConn()); err != nil {
		return s, err
	}
	d.NoteConfirmed(s)
	return s, nil
}

// ErrNotReplicated is the error of a commit that may not be on all servers: an operator has cancelled its wait for the
// standbys, or a worker of a distributed database has only prepared it.
var ErrNotReplicated = errors.New("the commit is not on all servers yet")

const notReplicated = "mtagd: not replicated"

// whereWorkersFail are the files of Citus whose warnings say that a worker has not answered.
var whereWorkersFail = []string{"remote_transaction.c", "remote_commands.c", "transaction_recovery.c"}

// noteIncompleteCommit notes that the connection's last commit may not be on the standbys or workers. The server only warns
// of it.
func noteIncompleteCommit(conn *pgconn.PgConn, n *pgconn.Notice) {
	if n.Routine == "SyncRepWaitForLSN" || n.SeverityUnlocalized == "WARNING" && slices.Contains(whereWorkersFail, path.Base(n.File)) {
		conn.CustomData()[notReplicated] = true
	}
}

// CheckReplicated returns an error if the last commit of a connection may not be on the standbys or workers. Callers treat
// it like a lost answer.
func CheckReplicated(conn *pgconn.PgConn) error {
	if conn.CustomData()[notReplicated] != nil {
		delete(conn.CustomData(), notReplicated)
		return ErrNotReplicated
	}
	return nil
}
