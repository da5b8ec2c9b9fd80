package control

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

// FollowInterval is how often a node asks for the changes of other nodes. NOTIFY would be faster, but takes a lock of the
// whole server at each commit, and does not pass poolers.
const FollowInterval = 200 * time.Millisecond

// FollowTimeout bounds one such question with its commit.
const FollowTimeout = 2 * time.Second

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

// Record is a record of the control data, with the number of the last change that wrote it.
type Record struct {
	rules.Record
	version int64
}

// lastApplied returns the number of the last entry that was applied.
func (f *follower) lastApplied() int64 {
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
	return f.applyRecords(u.seen.Change, u.records)
}

// applyRecords applies the records of changes up to a number, and skips those that were applied before.
func (f *follower) applyRecords(upTo int64, records []Record) error {
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
	records []Record // that these have written, in the order of their numbers
	seen    conn.Snapshot
}

// readAfter reads the changes after the one with the number after.
func (u *update) readAfter(ctx context.Context, tx pgx.Tx, after int64) (err error) {
	if err := u.seen.ReadFrom(tx.QueryRow(ctx, conn.ReadSnapshot)); err != nil {
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
	u.records, err = ReadRecords(ctx, tx, "version > $1 AND version <= $2 ORDER BY version", after, u.seen.Change)
	return err
}

// ReadRecords returns the records that a condition selects. Value is nil for a deleted one.
func ReadRecords(ctx context.Context, tx conn.Querier, condition string, args ...any) ([]Record, error) {
	return conn.CollectRows(ctx, tx, func(r *Record) []any { return []any{&r.Kind, &r.Key, &r.Value, &r.version} },
		"SELECT kind, id, body, version FROM record WHERE "+condition, args...)
}

// loadRecords reads all records.
func loadRecords(ctx context.Context, tx conn.Querier) (*rules.Loading, error) {
	records, err := ReadRecords(ctx, tx, "body IS NOT NULL")
	if err != nil {
		return nil, err
	}
	loaded := &rules.Loading{}
	for _, r := range records {
		if err := loaded.Add(r.Record); err != nil {
			return nil, fmt.Errorf("record %s %q: %w", r.Kind, r.Key, err)
		}
	}
	return loaded, nil
}

// loadAll loads all control data into memory, as of one moment, and waits until the standbys have it. Otherwise a fail-over
// could lose a change that this node has read, and give its number to another change, such as a revoked key. This node would
// never apply the second one.
func (c *Control) loadAll(ctx context.Context) error {
	var asked time.Time
	var loaded *rules.Loading
	var seen conn.Snapshot
	if err := c.db.Read(ctx, func(tx pgx.Tx) (err error) {
		asked = time.Now()
		if err := seen.ReadFrom(tx.QueryRow(ctx, conn.ReadSnapshot)); err != nil {
			return err
		}
		loaded, err = loadRecords(ctx, tx)
		return err
	}); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, FollowTimeout)
	defer cancel()
	if err := c.db.ConfirmNow(bounded, seen); err != nil {
		return notOnStandbys(err)
	}
	c.Data = rules.New(Driver{c}, loaded, c.db.Log)
	c.follower.data, c.follower.applied, c.follower.flushes = c.Data, seen.Change, seen.Flush
	c.db.AnsweredTo(asked)
	return nil
}

// notOnStandbys returns the error of what was read, but not confirmed.
func notOnStandbys(err error) error {
	return fmt.Errorf("the database answers, but what it has may not be on the standbys: %w", err)
}

// Follow follows the changes of other nodes until Close.
func (c *Control) Follow() {
	c.db.Repeat(FollowInterval, c.followOnce, func(err error) {
		if err != nil {
			c.db.Log.Error("changes of other nodes cannot be read: this node is not ready until they can be read", "error", err)
			return
		}
		c.db.Log.Info("changes of other nodes can be read again")
	})
}

// CatchUp applies the changes of other nodes, and returns the number of the last flush. From then on the directory has the
// tags of all events up to it. more may read other data as of the same moment.
//
// It makes a commit each time, even without changes, to test whether commits reach the standbys.
func (c *Control) CatchUp(ctx context.Context, more func(tx pgx.Tx) error) (flush int64, err error) {
	var u update
	asked, after := time.Now(), c.follower.lastApplied()
	if err := c.db.ReadNow(ctx, func(tx pgx.Tx) error {
		if err := u.readAfter(ctx, tx, after); err != nil {
			return err
		}
		return more(tx)
	}); err != nil {
		c.follower.waits.Store(false)
		return 0, err
	}
	c.follower.waits.Store(true)
	err = c.db.ConfirmNow(ctx, u.seen)
	c.follower.waits.Store(err != nil && !errors.Is(err, conn.ErrReplaced))
	if err != nil {
		return 0, notOnStandbys(err)
	}
	if err := c.follower.applyUpdate(&u); err != nil {
		return 0, err
	}
	c.db.AnsweredTo(asked)
	return u.seen.Flush, nil
}

// LastFlush returns the number of the last flush that the standbys have. From then on the directory has the tags of all
// events up to it.
func (c *Control) LastFlush(ctx context.Context) (int64, error) {
	var u update
	after := c.follower.lastApplied()
	if err := c.db.Read(ctx, func(tx pgx.Tx) error { return u.readAfter(ctx, tx, after) }); err != nil {
		return 0, err
	}
	if err := c.db.Confirm(ctx, u.seen); err != nil {
		return 0, err
	}
	return u.seen.Flush, c.follower.applyUpdate(&u)
}

// followOnce catches up, and tells those who wait for events what other nodes have recorded. When that takes too long, it
// closes the connections that were there before: otherwise, everything that waits for a server that is stopped or cut off would
// wait until it is back.
func (c *Control) followOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, FollowTimeout)
	defer cancel()
	asked := time.Now()
	defer func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			c.db.DropMade(asked)
		}
	}()
	var news []uuid.UUID
	flushes, err := c.CatchUp(ctx, func(tx pgx.Tx) (err error) {
		news, err = conn.Column[uuid.UUID](ctx, tx, "SELECT DISTINCT unnest(merchants) FROM flush WHERE seq > $1 AND node <> $2", c.follower.flushes, c.db.Node)
		return err
	})
	if err != nil {
		return err
	}
	c.follower.flushes = flushes
	c.News(news)
	return nil
}

// Ready returns why the directory is too old, or nil.
func (c *Control) Ready() error {
	if c.follower.lost.Load() {
		return errMissed
	}
	if age := c.db.Age(); age > store.MaxDirectoryAge {
		if c.follower.waits.Load() {
			return fmt.Errorf("the database answers, but its commits have waited for the standbys for %v", age.Round(time.Millisecond))
		}
		return fmt.Errorf("the database has not answered for %v", age.Round(time.Millisecond))
	}
	return nil
}
