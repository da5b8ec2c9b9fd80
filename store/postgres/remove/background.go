// Package remove removes events: those of persons and of deleted merchants, and those that are past the retention.
//
//	background.go  the tasks, and which node does them
//	remove.go      removes events and what belongs to them
package remove

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/control"
	"mtagd/store/postgres/count"
	"mtagd/store/postgres/read"
	"mtagd/store/removal"
	"mtagd/store/rules"
)

// Remover removes events in the background: those of persons and of deleted merchants, those that are past the retention,
// and old event_ids and flushes. It also rolls up the deltas of dead nodes. One node at a time does this. The tasks are in
// the database, so when that node dies, another one continues.
//
// An erasure (rules.Data.EraseOf) ends with VACUUM, which removes the rows from the tables. The space is reused, but not
// overwritten immediately, and the server's write-ahead log, its archive and its backups have the rows until the operator
// deletes them. So "done" promises less than with the embedded engine.
type Remover struct {
	db      *conn.DB
	control *control.Control
	counts  *count.Counters
	runner  *removal.Runner
}

// New returns a remover of the events of a database. eager is as for removal.NewRunner.
func New(db *conn.DB, c *control.Control, counts *count.Counters, reader *read.Reader, eager bool, metrics prometheus.Registerer) *Remover {
	r := &Remover{db: db, control: c, counts: counts}
	r.runner = removal.NewRunner(tasks{c.Data, r}, metrics, eager)
	c.Removing, c.People = r.Wake, people{reader, r}
	return r
}

// keepFlushes is how long flushes are kept, for the feed.
const keepFlushes = time.Hour

// ErrBusy says that this node may not remove events now.
var ErrBusy = errors.New("another node, or a move, keeps this one from removing events")

// Wake makes the node look for tasks.
func (r *Remover) Wake() { r.runner.Wake() }

// KeepRemoving does the tasks until ctx ends.
func (r *Remover) KeepRemoving(ctx context.Context) {
	r.runner.Keep(ctx, func(ctx context.Context) error {
		err := r.RunOnce(ctx)
		if err != nil && ctx.Err() == nil && !errors.Is(err, ErrBusy) { // another node may have begun before this node's erasure was requested
			r.db.Log.Error("background removal, or the rollup of a stopped node's deltas, failed; the node tries again", "error", err)
		}
		return err
	})
}

// ErrLost ends the removals of this node when its lock is lost: another node may have begun them.
var ErrLost = errors.New("the connection that keeps others from removing events was lost")

// RunOnce does the present tasks. It returns ErrBusy while another node does them, or while a move needs all events.
func (r *Remover) RunOnce(ctx context.Context) error {
	guard, err := r.db.Guard(ctx, ErrLost, func(tx pgx.Tx) error {
		var mine bool
		err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1)", conn.LockRemoval).Scan(&mine)
		if err == nil && !mine {
			err = ErrBusy
		}
		return err
	})
	if err != nil {
		return err
	}
	defer guard.Release()
	err = errors.Join(r.runner.Run(guard.Held), r.Expire(guard.Held), r.ForgetOld(guard.Held), r.counts.RollUpLeft(guard.Held))
	if err != nil && guard.Held.Err() != nil {
		return context.Cause(guard.Held)
	}
	return err
}

// tasks implements removal.Engine.
type tasks struct {
	*rules.Data
	r *Remover
}

// EraseOf implements removal.Engine. The links of flushes under way are found too.
func (t tasks) EraseOf(ctx context.Context, m store.MerchantID, erasures []store.Erasure) error {
	if err := t.r.db.AwaitFlushes(ctx); err != nil {
		return err
	}
	return t.Data.EraseOf(ctx, m, erasures)
}

// Purge implements removal.Engine.
func (t tasks) Purge(ctx context.Context) error {
	for _, table := range []string{"event", "link", "held_link", "linked_muid", "dedup"} {
		if _, err := t.r.db.Pool.Exec(ctx, "VACUUM (INDEX_CLEANUP on, TRUNCATE false) "+table); err != nil {
			return fmt.Errorf("VACUUM of %s: %w", table, err)
		}
	}
	return nil
}

// Drop implements removal.Engine.
func (t tasks) Drop(ctx context.Context, id store.MerchantID) error {
	merchant, ok := conn.KeyOf(id)
	if !ok {
		return store.NotFound("merchant")
	}
	return t.r.dropMerchant(ctx, merchant)
}

// ExpireOf implements removal.Engine.
func (t tasks) ExpireOf(ctx context.Context, id store.MerchantID, before int64) (some bool, err error) {
	merchant, ok := conn.KeyOf(id)
	if !ok {
		return false, store.NotFound("merchant")
	}
	const portion = 5000
	for {
		now, err := t.Now(ctx)
		if err != nil {
			return some, err
		}
		before = min(before, t.ExpiredBefore(id, now)) // the retention may be longer by now
		old, err := conn.SelectRows(ctx, t.r.db, func(at *store.Position) []any { return []any{&at.Seq, &at.Index} },
			"SELECT seq, idx FROM event WHERE merchant = $1 AND at < $2 ORDER BY at LIMIT $3", merchant, before, portion)
		if err != nil {
			return some, err
		}
		some = some || len(old) > 0
		if err := t.r.RemoveEvents(ctx, merchant, old); err != nil || len(old) < portion {
			return some, err
		}
	}
}

// people implements rules.People.
type people struct {
	*read.Reader
	r *Remover
}

// Forget implements rules.People.
func (p people) Forget(ctx context.Context, m store.MerchantKey, links []store.Link, events []rules.ForgottenEvent) error {
	merchant := uuid.UUID(m)
	keys, muids := make([][]byte, len(links)), make([][]byte, len(links))
	for i := range links {
		keys[i], muids[i] = links[i].Identifier[:], []byte(links[i].MUID)
	}
	for _, table := range []string{"link", "held_link"} {
		if _, err := p.r.db.Pool.Exec(ctx, "DELETE FROM "+table+" WHERE merchant = $1 AND (key, muid) IN (SELECT * FROM unnest($2::bytea[], $3::bytea[]))",
			merchant, keys, muids); err != nil {
			return err
		}
	}
	positions := make([]store.Position, len(events))
	var remembered [][]byte
	for i, e := range events {
		positions[i] = e.At
		if e.EventID != "" {
			key := store.RememberedKey(e.Name, e.EventID)
			remembered = append(remembered, key[:])
		}
	}
	if _, err := p.r.db.Pool.Exec(ctx, "DELETE FROM dedup WHERE merchant = $1 AND key = ANY($2)", merchant, remembered); err != nil {
		return err
	}
	return p.r.RemoveEvents(ctx, merchant, positions)
}

// Expire removes the events of all merchants that are past the retention.
func (r *Remover) Expire(ctx context.Context) error {
	return r.runner.Expire(ctx, r.control.Expiring(), false)
}

// ForgetOld removes event_ids that are no longer remembered, and old flushes. It never waits for the rows of a flush under
// way.
func (r *Remover) ForgetOld(ctx context.Context) error {
	const portion = 10_000
	now, err := r.control.Now(ctx)
	if err != nil {
		return err
	}
	for {
		n, err := r.forgetIDs(ctx, now.Add(-store.DedupeWindow-time.Hour).UnixMicro(), portion)
		if err != nil {
			return err
		}
		if n < portion {
			break
		}
	}
	for {
		done, err := r.db.Pool.Exec(ctx, `DELETE FROM flush WHERE (merchant, id) IN (SELECT merchant, id FROM flush WHERE seq BETWEEN 1 AND $1
			AND seq < (SELECT max(seq) FROM flush) LIMIT $2 FOR UPDATE SKIP LOCKED)`, now.Add(-keepFlushes).UnixMicro(), portion)
		if err != nil || done.RowsAffected() < portion {
			return err
		}
	}
}

// forgetIDs removes some event_ids that count no more, and returns how many it has found. It finds those of all merchants,
// and removes them merchant by merchant: so each deletion is about one shard.
func (r *Remover) forgetIDs(ctx context.Context, before int64, portion int) (n int, err error) {
	old := map[uuid.UUID][][]byte{}
	if err := r.db.Read(ctx, func(tx pgx.Tx) error {
		clear(old)
		n = 0
		var merchant uuid.UUID
		var key []byte
		return conn.Query(ctx, tx, []any{&merchant, &key}, func() error {
			old[merchant] = append(old[merchant], key)
			n++
			return nil
		}, "SELECT merchant, key FROM dedup WHERE seen < $1 LIMIT $2", before, portion)
	}); err != nil {
		return 0, err
	}
	removed := int64(0)
	for merchant, keys := range old {
		done, err := r.db.Pool.Exec(ctx, `DELETE FROM dedup WHERE merchant = $1 AND key IN
			(SELECT key FROM dedup WHERE merchant = $1 AND key = ANY($2) AND seen < $3 FOR UPDATE SKIP LOCKED)`, merchant, keys, before)
		if err != nil {
			return 0, err
		}
		removed += done.RowsAffected()
	}
	if removed == 0 {
		return 0, nil // flushes have locked the rest
	}
	return n, nil
}
