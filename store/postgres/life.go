package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/read"
	"mtagd/store/postgres/write"
	"mtagd/store/removal"
	"mtagd/store/rules"
)

// life removes events in the background: those of persons and of deleted merchants, those that are past the retention, and what
// needs not be remembered any more. One node does it at a time. What there is to do is in the database: so the death of a node
// loses nothing, and another one goes on. It also folds what dead nodes have left in the tally (sweep).
//
// An erasure:
//
//  1. Erase notes it, with hashes only.
//  2. The links of the person are found. With suppress, their identifiers are refused from now on.
//  3. All events of the merchant are read, up to the last flush, to find the person's. How many there are is noted.
//  4. The links, the remembered event_ids of the events, and the events are removed.
//  5. VACUUM removes their rows from the tables. Only then the erasure is done. The space of the rows is used again, but not
//     overwritten at once; and the server's write-ahead log, its archive and its backups have the rows until the operator deletes
//     them. So "done" promises less here than with the embedded engine.
//
// After a kill, all steps are done again. Step 3 finds what is left, and does not change the number that was noted.
type life struct {
	runner removal.Runner
	wake   chan struct{} // holds a value when there is something to do
}

const (
	lifeInterval = time.Minute
	lifeRetry    = 5 * time.Second

	// keepFlushes is how long flushes are kept, for the feed.
	keepFlushes = time.Hour
)

var errBusy = errors.New("another node, or a move, keeps this one from removing events")

// nudge makes the node look for something to do.
func (l *life) nudge() {
	select {
	case l.wake <- struct{}{}:
	default: // it was told already
	}
}

// live runs until Close.
func (e *engine) live(ctx context.Context) {
	for ctx.Err() == nil {
		wait := lifeInterval
		switch err := e.liveOnce(ctx); {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, errBusy):
			wait = lifeRetry // the other node may have begun before an erasure that this one was asked for
		default:
			e.db.Log.Error("the node cannot now remove events that must go, or count what a stopped node has left; it tries again", "error", err)
			wait = lifeRetry
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-e.life.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// errLifeLost ends the removals of this node when its lock is lost: another node may have begun them.
var errLifeLost = errors.New("the connection that keeps others from removing events was lost")

// liveOnce does what there is to do. It returns errBusy when another node is at it, or when a move needs all events.
func (e *engine) liveOnce(ctx context.Context) error {
	h, err := e.db.Guard(ctx, errLifeLost, func(tx pgx.Tx) error {
		var mine bool
		err := tx.QueryRow(ctx, "SELECT pg_try_advisory_xact_lock($1)", conn.LockRemoval).Scan(&mine)
		if err == nil && !mine {
			err = errBusy
		}
		return err
	})
	if err != nil {
		return err
	}
	defer h.Release()
	err = errors.Join(e.life.runner.Run(h.Held), e.expire(h.Held), e.forget(h.Held), e.counts.RollUpLeft(h.Held))
	if err != nil && h.Held.Err() != nil {
		return context.Cause(h.Held)
	}
	return err
}

// remover implements removal.Engine.
type remover struct {
	*rules.Data // the tasks
	e           *engine
}

// Time implements removal.Engine.
func (r remover) Time(ctx context.Context) (time.Time, error) { return r.e.db.Clock(ctx) }

// Purge implements removal.Engine: step 5.
func (r remover) Purge(ctx context.Context) error {
	for _, table := range []string{"event", "link", "held_link", "linked_muid", "dedup"} {
		if _, err := r.e.db.Pool.Exec(ctx, "VACUUM (INDEX_CLEANUP on, TRUNCATE false) "+table); err != nil {
			return fmt.Errorf("VACUUM of %s: %w", table, err)
		}
	}
	return nil
}

// Drop implements removal.Engine.
func (r remover) Drop(ctx context.Context, id store.MerchantID) error {
	merchant, ok := conn.KeyOf(id)
	if !ok {
		return store.NotFound("merchant")
	}
	return r.e.dropMerchant(ctx, merchant)
}

// ExpireOf implements removal.Engine.
func (r remover) ExpireOf(ctx context.Context, id store.MerchantID) (some bool, err error) {
	merchant, ok := conn.KeyOf(id)
	if !ok {
		return false, store.NotFound("merchant")
	}
	return r.e.expireOf(ctx, merchant)
}

// Reclaim implements removal.Engine: autovacuum does it.
func (remover) Reclaim(context.Context) error { return nil }

// EraseOf implements removal.Engine: the steps 2 to 4.
func (r remover) EraseOf(ctx context.Context, id store.MerchantID, erasures []store.Erasure) error {
	e := r.e
	merchant, ok := conn.KeyOf(id)
	if !ok {
		return store.NotFound("merchant")
	}
	x := rules.NewErasing(erasures)
	if err := r.UpdateErasures(ctx, x.IDs, x.Begin); err != nil { // the same request is this erasure until here
		return err
	}
	var links []store.Link
	var last int64
	if err := e.db.Read(ctx, func(tx pgx.Tx) error {
		links = nil
		if err := read.LinksOf(ctx, tx, merchant, x.Everyone, func(l store.Link) { links = append(links, l) }); err != nil {
			return err
		}
		return tx.QueryRow(ctx, "SELECT coalesce(max(seq), 0) FROM flush").Scan(&last)
	}); err != nil {
		return err
	}
	x.Found(links)
	if err := r.UpdateErasures(ctx, x.IDs, x.Begin); err != nil { // before the links are removed
		return err
	}
	var events []read.Receipt
	var remembered [][]byte
	var reader rules.EventReader
	if err := e.EachOf(ctx, merchant, int64(x.Until(uint64(last))), x.Persons, func(p *read.Personal, owners, claimed []int) error {
		if !x.Take(uint64(p.Receipt.Seq), owners, claimed) {
			return nil
		}
		events = append(events, p.Receipt)
		if id, ok := reader.EventID(p.Raw); ok {
			key := write.RememberedKey(p.Name, id)
			remembered = append(remembered, key[:])
		}
		return nil
	}); err != nil {
		return err
	}
	if err := r.UpdateErasures(ctx, x.IDs, x.Remove); err != nil {
		return err
	}
	// A link that has led to another muid since then is not concerned.
	keys, muids := make([][]byte, len(links)), make([][]byte, len(links))
	for i := range links {
		keys[i], muids[i] = links[i].Identifier[:], []byte(links[i].MUID)
	}
	for _, table := range []string{"link", "held_link"} {
		if _, err := e.db.Pool.Exec(ctx, "DELETE FROM "+table+" WHERE merchant = $1 AND (key, muid) IN (SELECT * FROM unnest($2::bytea[], $3::bytea[]))",
			merchant, keys, muids); err != nil {
			return err
		}
	}
	// linked_muid stays: somebody may know the muids, and say that he has their cookie.
	if _, err := e.db.Pool.Exec(ctx, "DELETE FROM dedup WHERE merchant = $1 AND key = ANY($2)", merchant, remembered); err != nil {
		return err
	}
	return e.removeEvents(ctx, merchant, events)
}

// expire removes the events of all merchants that are past the retention.
func (e *engine) expire(ctx context.Context) error {
	return e.life.runner.Expire(ctx, e.Expiring())
}

// expireOf removes the events of one merchant that are past its retention, and reports whether there were any.
func (e *engine) expireOf(ctx context.Context, m uuid.UUID) (some bool, err error) {
	const portion = 5000
	for {
		var old []read.Receipt
		if err := e.db.Read(ctx, func(tx pgx.Tx) error {
			scopes, err := e.Scopes(ctx, tx, m)
			if err != nil {
				return err
			}
			old = nil
			return conn.Query(ctx, tx, func(rows pgx.Rows) error {
				var r read.Receipt
				err := rows.Scan(&r.Seq, &r.Idx)
				old = append(old, r)
				return err
			}, "SELECT seq, idx FROM event WHERE merchant = $1 AND at < $2 ORDER BY at LIMIT $3", m, scopes[0].From-rules.ExpiryDelay.Microseconds(), portion)
		}); err != nil {
			return some, err
		}
		some = some || len(old) > 0
		if err := e.removeEvents(ctx, m, old); err != nil || len(old) < portion {
			return some, err
		}
	}
}

// forget removes event_ids that count no more, and old flushes. It never waits for the rows of a flush that is under way.
func (e *engine) forget(ctx context.Context) error {
	const portion = 10_000
	var now time.Time
	if err := e.db.Read(ctx, func(tx pgx.Tx) (err error) {
		now, err = e.Time(ctx, tx)
		return err
	}); err != nil {
		return err
	}
	for {
		n, err := e.forgetIDs(ctx, now.Add(-store.DedupeWindow-time.Hour).UnixMicro(), portion)
		if err != nil {
			return err
		}
		if n < portion {
			break
		}
	}
	for {
		done, err := e.db.Pool.Exec(ctx, `DELETE FROM flush WHERE (merchant, id) IN (SELECT merchant, id FROM flush WHERE seq BETWEEN 1 AND $1
			AND seq < (SELECT max(seq) FROM flush) LIMIT $2 FOR UPDATE SKIP LOCKED)`, now.Add(-keepFlushes).UnixMicro(), portion)
		if err != nil || done.RowsAffected() < portion {
			return err
		}
	}
}

// forgetIDs removes some event_ids that count no more, and returns how many it has found. It finds those of all merchants, and
// removes them merchant by merchant: so each deletion is about one shard.
func (e *engine) forgetIDs(ctx context.Context, before int64, portion int) (n int, err error) {
	old := map[uuid.UUID][][]byte{}
	if err := e.db.Read(ctx, func(tx pgx.Tx) error {
		clear(old)
		n = 0
		return conn.Query(ctx, tx, func(rows pgx.Rows) error {
			var merchant uuid.UUID
			var key []byte
			err := rows.Scan(&merchant, &key)
			old[merchant] = append(old[merchant], key)
			n++
			return err
		}, "SELECT merchant, key FROM dedup WHERE seen < $1 LIMIT $2", before, portion)
	}); err != nil {
		return 0, err
	}
	removed := int64(0)
	for merchant, keys := range old {
		done, err := e.db.Pool.Exec(ctx, `DELETE FROM dedup WHERE merchant = $1 AND key IN
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

// Erase implements store.Persons. It notes the erasure; life.go does it.
func (e *engine) Erase(ctx context.Context, id store.MerchantID, named store.Identity, opt store.ErasureOptions) (era store.Erasure, err error) {
	if err := rules.CheckPerson(&named); err != nil {
		return era, err
	}
	key, ok := conn.KeyOf(id)
	if !ok {
		return era, store.NotFound("merchant")
	}
	var who store.Person
	if err := e.db.ReadLong(ctx, func(tx pgx.Tx) (err error) {
		who, err = read.PersonOf(ctx, tx, key, &named, opt.Claimed)
		return err
	}); err != nil {
		return era, err
	}
	return e.AddErasure(ctx, id, who, opt.Suppress)
}
