package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"mtagd/store"
	"mtagd/store/move"
)

// A database moves out while its nodes serve. The move freezes them by locks that each write needs anyway, in one transaction: a flush
// writes to the table flush, a change takes lockControl. The same transaction says at its end that the data has moved. So whatever
// waits for a lock is committed after a move that was given up, or never. When the command is killed or cut off, the server ends
// the transaction, and the nodes go on.
//
// Besides, the row of the move says until when the nodes are frozen, by the database's clock. The nodes read it as they read the changes,
// so that they refuse requests at once. Nothing depends on it but that.
const (
	freezeLease = holdLease        // how long the row counts
	freezeWait  = 10 * time.Second // how long the locks are waited for
)

var _ move.Source = (*Database)(nil)

// ID implements move.Source. While another move may still commit its mark, it waits: its insert needs a table that is locked then.
func (d *Database) ID(ctx context.Context) (string, error) {
	if err := checkMove(ctx, d.e.pool); err != nil {
		return "", err
	}
	p, err := d.Place(ctx)
	if err == nil {
		err = checkMove(ctx, d.e.pool) // again: the data may have moved meanwhile
	}
	return p.ID, err
}

// errHoldLost ends a move when the connection of Hold is lost: nodes may remove events, so source and target may differ.
var errHoldLost = errors.New("the connection to the database that keeps the nodes from removing events was lost: run the same command again")

// PassesAllLinks implements move.Source.
func (d *Database) PassesAllLinks() bool { return true }

// Hold implements move.Source.
func (d *Database) Hold(ctx context.Context) (held context.Context, release func(), err error) {
	held, release, err = d.e.hold(ctx, errHoldLost, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", lockLife)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("keep the nodes from removing events: %w", err)
	}
	return held, release, nil
}

// Last implements move.Source. The standbys have all events up to there, and so do the workers of a distributed database.
func (d *Database) Last(ctx context.Context) (uint64, error) {
	seen, err := d.e.confirmAll(ctx)
	if err != nil {
		return 0, err
	}
	distributed, err := isDistributed(ctx, d.e.pool)
	if err == nil && distributed {
		err = d.e.awaitCommits(ctx)
	}
	return uint64(seen.flush), err
}

// Usage implements move.Source. It reads what flushes have counted.
func (d *Database) Usage(ctx context.Context, merchants []store.MerchantID) ([]store.Usage, error) {
	return d.e.Usage(ctx, merchants)
}

// Freeze implements move.Source.
func (d *Database) Freeze(ctx context.Context) (move.Frozen, error) {
	f := &frozen{d: d}
	if err := f.announce(ctx); err != nil {
		return nil, err
	}
	stop := keepAlive(f.announce, f.noteLost) // while others end what they have begun
	err := f.waitForNodes(ctx)
	if err == nil {
		err = f.lock(ctx)
	}
	stop()
	if err != nil {
		f.withdraw()
		return nil, fmt.Errorf("wait for the nodes: %w", err)
	}
	f.stop = keepAlive(func(ctx context.Context) error {
		if err := ping(ctx, f.tx); err != nil {
			return err // the locks are gone: announcing the freeze again would only delay the nodes
		}
		return f.announce(ctx)
	}, f.noteLost)
	return f, nil
}

// noteLost logs that the freeze may have ended by itself. Commit finds out whether it has.
func (f *frozen) noteLost(err error) {
	f.d.e.log.Warn("the nodes may not be frozen any more", "error", err)
}

// frozen implements move.Frozen.
type frozen struct {
	d    *Database
	tx   pgx.Tx // has the locks
	stop func()

	mu    sync.Mutex
	ended bool // committed, or released
}

// announce tells the nodes that they are frozen.
func (f *frozen) announce(ctx context.Context) error { return f.announceFor(ctx, freezeLease) }

func (f *frozen) announceFor(ctx context.Context, lease time.Duration) error {
	done, err := f.d.e.pool.Exec(ctx, `INSERT INTO move (direction, peer, at, ready)
		SELECT 'out', '', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + $1::bigint, false
		ON CONFLICT (direction) DO UPDATE SET at = excluded.at WHERE NOT move.ready`, lease.Microseconds())
	if err == nil && done.RowsAffected() == 0 {
		err = errMovedAway
	}
	return err
}

// waitForNodes gives the nodes time to read the announcement. Flushes that begin after the locks are taken would wait for them, for so
// long that their senders may be told that the outcome is not known.
func (f *frozen) waitForNodes(ctx context.Context) error {
	select {
	case <-time.After(2 * followInterval):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// withdraw tells the nodes that they go on. If that fails, they do so after freezeLease.
func (f *frozen) withdraw() {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	if _, err := f.d.e.pool.Exec(ctx, "DELETE FROM move WHERE direction = 'out' AND NOT ready"); err != nil {
		f.d.e.log.Warn("the nodes go on a few seconds later: they could not be told", "error", err)
	}
}

// frozenTables are written without lockControl, and move. The first one is that of the flushes: each has a row, which it writes before its
// commit. The lock of the first one lets the transaction enable its trigger.
var frozenTables = []string{"flush IN SHARE ROW EXCLUSIVE", "file IN SHARE", "setting IN SHARE", "audit IN SHARE"}

// lock waits for the writes that are under way, and keeps others waiting. Changes come first: they take their lock before those of tables.
func (f *frozen) lock(ctx context.Context) (err error) {
	f.tx, err = f.d.e.beginHold(ctx, freezeWait, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", lockControl); err != nil {
			return err
		}
		for _, table := range frozenTables {
			if _, err := tx.Exec(ctx, "LOCK TABLE "+table+" MODE"); err != nil {
				return err
			}
		}
		// What a worker of a distributed database has only prepared would be missing in the copy.
		return f.d.e.finishOnWorkers(ctx)
	})
	return err
}

// end reports whether the caller is the one who ends the freeze.
func (f *frozen) end() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	first := !f.ended
	f.ended = true
	return first
}

// Release implements move.Frozen.
func (f *frozen) Release() {
	if f.end() {
		f.stop()
		rollback(f.tx)
		f.withdraw()
	}
}

// errReleased is for a freeze that has ended meanwhile.
var errReleased = errors.New("the nodes were not frozen any more")

// Commit implements move.Frozen.
func (f *frozen) Commit(ctx context.Context, to move.Place) error {
	if !f.end() {
		return errReleased
	}
	f.stop()
	err := f.mark(ctx, to)
	if err == nil {
		return nil
	}
	rollback(f.tx)
	moved, settleErr := f.settle(ctx, to)
	switch {
	case settleErr != nil:
		return &move.Unfinished{Err: fmt.Errorf("it is not known whether the database is marked as moved: %w: %w", err, settleErr)}
	case !moved:
		f.withdraw()
		return err
	}
	return nil
}

// mark marks the database as moved, in the transaction that has the locks. Nodes learn it from its row. Nodes of earlier versions do not
// know the row: the trigger refuses their flushes, and as a number of the table change is missing, they make no changes any more.
func (f *frozen) mark(ctx context.Context, to move.Place) error {
	done, err := f.tx.Exec(ctx, `UPDATE move SET peer = $1, peer_id = $2, at = (extract(epoch FROM now()) * 1000000)::bigint, ready = true
		WHERE direction = 'out' AND NOT ready`, to.Name, to.ID)
	if err != nil {
		return err
	}
	if done.RowsAffected() != 1 {
		return errReleased
	}
	if _, err := f.tx.Exec(ctx, "INSERT INTO change (seq, tx, kind, record) SELECT coalesce(max(seq), 0) + 2, $1, $2, '{}' FROM change",
		uuid.New(), changeOfRecords); err != nil {
		return err
	}
	if _, err := f.tx.Exec(ctx, "ALTER TABLE flush ENABLE TRIGGER moved"); err != nil {
		return err
	}
	conn := f.tx.Conn().PgConn()
	if err := f.tx.Commit(ctx); err != nil {
		return err
	}
	return checkReplicated(conn)
}

// settle finds out what became of a commit whose answer was lost.
func (f *frozen) settle(ctx context.Context, to move.Place) (moved bool, err error) {
	err = f.d.e.retry(ctx, func() error {
		peer, _, is, err := f.d.Moved(ctx)
		moved = is && peer.Is(to)
		return err
	})
	return moved, err
}

// Moved returns where the data of the database has moved, and when; false when it has not. It changes the row that a move marks at its end:
// so it waits until a commit that is under way has ended, and its own commit waits for the standbys. A mark that only this server has
// could be lost with it.
func (d *Database) Moved(ctx context.Context) (to move.Place, at time.Time, moved bool, err error) {
	err = d.e.transact(ctx, func(tx pgx.Tx) error {
		var µs int64
		err := tx.QueryRow(ctx, "UPDATE move SET ready = ready WHERE direction = 'out' RETURNING peer, peer_id, at, ready").Scan(&to.Name, &to.ID, &µs, &moved)
		if errors.Is(err, pgx.ErrNoRows) {
			moved, err = false, nil
		}
		at = timeAt(µs)
		return err
	})
	return to, at, moved, err
}

func movedTo(ctx context.Context, tx querier) (to move.Place, at time.Time, moved bool, err error) {
	err = query(ctx, tx, func(rows pgx.Rows) error {
		var µs int64
		err := rows.Scan(&to.Name, &to.ID, &µs)
		at, moved = timeAt(µs), true
		return err
	}, "SELECT peer, peer_id, at FROM move WHERE direction = 'out' AND ready")
	return to, at, moved, err
}

// errMoving and errMovedAway are for what is refused while the data moves, and after it has moved.
var (
	errMoving    = store.Unavailable("the data moves to another store")
	errMovedAway = store.Unavailable("the data has moved to another store")
)

// leaving says for operators why a node refuses requests; nil while it does not.
type leaving struct {
	to    string // where the data has moved
	moved bool
}

// err returns the error of a request; nil while requests are accepted.
func (l *leaving) err() error {
	switch {
	case l == nil:
		return nil
	case l.moved:
		return errMovedAway
	}
	return errMoving
}

// ready returns an error for operators, or nil.
func (l *leaving) ready() error {
	switch {
	case l == nil:
		return nil
	case l.moved:
		return fmt.Errorf("the data of the database has moved to %s. Start the service there with --data", l.to)
	}
	return errors.New("the data moves out of the database: events and changes are refused until it has, for seconds")
}

// leavingRow is a column that has where the data has moved, an empty text while the nodes are frozen, or else NULL.
const leavingRow = `(SELECT CASE WHEN ready THEN peer ELSE '' END FROM move WHERE direction = 'out'
	AND (ready OR at > (extract(epoch FROM clock_timestamp()) * 1000000)::bigint))`

// noteLeaving notes what was read of leavingRow.
func (f *follower) noteLeaving(to *string) {
	if to == nil {
		f.leaving.Store(nil)
		return
	}
	f.leaving.Store(&leaving{*to, *to != ""})
}

// refusedByMove returns the error of a flush that was refused because the data moves, or has moved: it was surely not committed. For
// other errors it returns nil.
func refusedByMove(err error) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	switch {
	case ok && pgErr.Code == "MT001":
		return errMovedAway
	case ok && pgErr.Code == lockNotAvailable:
		return unavailableFlush(err)
	}
	return nil
}

// lockNotAvailable is the SQLSTATE of a statement that has waited for a lock for too long.
const lockNotAvailable = "55P03"
