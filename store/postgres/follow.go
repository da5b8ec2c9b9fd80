package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/rules"
)

// followInterval is how often a node asks what other nodes have changed. NOTIFY would tell it sooner, but takes a lock of the
// whole server at each commit, and does not get through poolers.
const followInterval = 200 * time.Millisecond

// followTimeout is for one such question, and for a commit.
const followTimeout = 2 * time.Second

// keepChanges is how long entries of the table change are kept. A node that was stopped for longer must be started again.
const keepChanges = "24 hours"

// follower keeps a node's memory of the control data up to date.
type follower struct {
	data  *rules.Data
	lost  atomic.Bool // changes were missed
	waits atomic.Bool // the last question was answered, but a commit after it still waits for the standbys

	flushes int64 // the number of the last flush that was seen; only follow uses it

	catching sync.Mutex // held while a reader catches up

	mu      sync.Mutex // held while changes are applied
	applied int64      // the number of the last one
}

// errMissed is for a node that was stopped for so long that entries were deleted before it had read them.
var errMissed = fmt.Errorf("%w: changes of the control data were missed", store.ErrNeedsRestart)

// record is a record of the control data, with the number of the change that has written it last.
type record struct {
	rules.Record
	version int64
}

// position returns the number of the last entry that was applied.
func (f *follower) position() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.applied
}

// applyUpdate applies what was read. The caller has made sure that it is on the standbys.
func (f *follower) applyUpdate(u *update) error {
	if u.changes != max(u.seen.Change-u.after, 0) {
		f.lost.Store(true)
		return errMissed
	}
	return f.apply(u.seen.Change, u.records)
}

// apply applies what changes up to one have written, and passes over what was applied before.
func (f *follower) apply(upTo int64, records []record) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if upTo <= f.applied {
		return nil
	}
	var later []rules.Record
	for _, r := range records {
		if r.version > f.applied {
			later = append(later, r.Record)
		}
	}
	if err := f.data.Apply(later); err != nil {
		return fmt.Errorf("changes up to %d: %w", upTo, err)
	}
	f.applied = upTo
	return nil
}

// update is what the database has, as of one moment, that a node may not know yet.
type update struct {
	after   int64    // the number of the last change that the node has applied
	changes int64    // how many there are after it
	records []record // that these have written, in the order of their numbers
	seen    conn.Snapshot
}

// read reads what follows the change with the number after.
func (u *update) read(ctx context.Context, tx pgx.Tx, after int64) (err error) {
	if err := u.seen.Scan(tx.QueryRow(ctx, conn.ReadSnapshot)); err != nil {
		return err
	}
	return u.readChanges(ctx, tx, after)
}

// readChanges reads what the changes have written, from the one after a number up to the one that was seen.
func (u *update) readChanges(ctx context.Context, tx pgx.Tx, after int64) (err error) {
	if u.after = after; u.seen.Change <= after {
		return nil
	}
	if err := tx.QueryRow(ctx, "SELECT count(*) FROM change WHERE seq > $1 AND seq <= $2", after, u.seen.Change).Scan(&u.changes); err != nil {
		return err
	}
	u.records, err = readRecords(ctx, tx, "version > $1 AND version <= $2 ORDER BY version", after, u.seen.Change)
	return err
}

// readRecords returns the records that a condition selects. Value is nil for a deleted one.
func readRecords(ctx context.Context, tx conn.Querier, condition string, args ...any) (records []record, err error) {
	err = conn.Query(ctx, tx, func(rows pgx.Rows) error {
		var r record
		err := rows.Scan(&r.Kind, &r.Key, &r.Value, &r.version)
		records = append(records, r)
		return err
	}, "SELECT kind, id, body, version FROM record WHERE "+condition, args...)
	return records, err
}

// loadState reads all records.
func loadState(ctx context.Context, tx conn.Querier) (*rules.State, error) {
	records, err := readRecords(ctx, tx, "body IS NOT NULL")
	if err != nil {
		return nil, err
	}
	s := rules.NewState(nil) // no record is damaged
	for _, r := range records {
		if err := s.Load(r.Record); err != nil {
			return nil, fmt.Errorf("record %s %q: %w", r.Kind, r.Key, err)
		}
	}
	return s, nil
}

// loadDirectory loads all control data into memory, as of one moment, and waits until the standbys have that. Otherwise a
// fail-over could lose a change that was read, and give its number to another one, such as a revoked key. This node would never apply that.
func (e *engine) loadDirectory(ctx context.Context) error {
	var asked time.Time
	var loaded *rules.State
	var seen conn.Snapshot
	if err := e.db.Read(ctx, func(tx pgx.Tx) (err error) {
		asked = time.Now()
		if err := seen.Scan(tx.QueryRow(ctx, conn.ReadSnapshot)); err != nil {
			return err
		}
		loaded, err = loadState(ctx, tx)
		return err
	}); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	if err := e.db.ConfirmNow(bounded, seen); err != nil {
		return notOnStandbys(err)
	}
	e.Data = rules.New(driver{e}, loaded, e.db.Log)
	e.Directory().SetAge(e.db.Age)
	e.follower.data, e.follower.applied, e.follower.flushes = e.Data, seen.Change, seen.Flush
	e.db.AnsweredTo(asked)
	return nil
}

// notOnStandbys returns the error of what was read, but not confirmed.
func notOnStandbys(err error) error {
	return fmt.Errorf("the database answers, but what it has may not be on the standbys: %w", err)
}

// follow follows the changes of other nodes until Close.
func (e *engine) follow() {
	e.db.Repeat(followInterval, e.followOnce, func(err error) {
		if err != nil {
			e.db.Log.Error("what other nodes have changed cannot be read: this node is not ready until it can", "error", err)
			return
		}
		e.db.Log.Info("what other nodes have changed can be read again")
	})
}

// catchUp applies what other nodes have changed, and returns the number of the last flush. From then on the directory has the tags of all
// events up to it. more reads more as of the same moment.
//
// It makes a commit each time, even when there is nothing new. That shows whether commits reach the standbys.
func (e *engine) catchUp(ctx context.Context, more func(tx pgx.Tx) error) (flush int64, err error) {
	var u update
	asked, after := time.Now(), e.follower.position()
	if err := e.db.ReadNow(ctx, func(tx pgx.Tx) error {
		if err := u.read(ctx, tx, after); err != nil {
			return err
		}
		return more(tx)
	}); err != nil {
		e.follower.waits.Store(false)
		return 0, err
	}
	e.follower.waits.Store(true)
	err = e.db.ConfirmNow(ctx, u.seen)
	e.follower.waits.Store(err != nil && !errors.Is(err, conn.ErrReplaced))
	if err != nil {
		return 0, notOnStandbys(err)
	}
	if err := e.follower.applyUpdate(&u); err != nil {
		return 0, err
	}
	e.db.AnsweredTo(asked)
	return u.seen.Flush, nil
}

// lastFlush returns the number of the last flush that the standbys have. From then on the directory has the tags of all events up to it.
func (e *engine) lastFlush(ctx context.Context) (int64, error) {
	var u update
	after := e.follower.position()
	if err := e.db.Read(ctx, func(tx pgx.Tx) error { return u.read(ctx, tx, after) }); err != nil {
		return 0, err
	}
	if err := e.db.Confirm(ctx, u.seen); err != nil {
		return 0, err
	}
	return u.seen.Flush, e.follower.applyUpdate(&u)
}

// followOnce catches up, and tells those who wait for events what other nodes have recorded. When that takes too long, it closes
// all connections: otherwise, everything that waits for a server that is stopped or cut off would wait until it is back.
func (e *engine) followOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, followTimeout)
	defer cancel()
	defer func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			e.db.DropAll()
		}
	}()
	var news []uuid.UUID
	flushes, err := e.catchUp(ctx, func(tx pgx.Tx) error {
		news = nil
		return conn.Query(ctx, tx, func(rows pgx.Rows) error {
			var merchant uuid.UUID
			err := rows.Scan(&merchant)
			news = append(news, merchant)
			return err
		}, "SELECT DISTINCT unnest(merchants) FROM flush WHERE seq > $1 AND node <> $2", e.follower.flushes, e.db.Node)
	})
	if err != nil {
		return err
	}
	e.follower.flushes = flushes
	e.watches.tell(news)
	return nil
}

// Ready implements store.Engine.
func (e *engine) Ready() error {
	if e.follower.lost.Load() {
		return errMissed
	}
	if age := e.db.Age(); age > store.MaxDirectoryAge {
		if e.follower.waits.Load() {
			return fmt.Errorf("the database answers, but its commits have waited for the standbys for %v", age.Round(time.Millisecond))
		}
		return fmt.Errorf("the database has not answered for %v", age.Round(time.Millisecond))
	}
	return nil
}
