package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/migrate"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/control"
	"mtagd/store/postgres/count"
	"mtagd/store/postgres/write"
)

// BeginFilling implements migrate.Successor.
func (d *Database) BeginFilling(ctx context.Context) error {
	d.counted = false
	return pgx.BeginFunc(ctx, d.db.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", conn.LockControl); err != nil {
			return err
		}
		var unfinished, used bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM move WHERE direction = 'in'),
			EXISTS (SELECT FROM record WHERE kind = 'partners' AND body IS NOT NULL) OR EXISTS (SELECT FROM audit) OR EXISTS (SELECT FROM usage) OR EXISTS (SELECT FROM tally)`).Scan(&unfinished, &used); err != nil {
			return err
		}
		if used && !unfinished {
			return fmt.Errorf("%s is not empty: data can only be moved into a new database", d.Name())
		}
		if _, err := tx.Exec(ctx, emptyTables); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO move (direction, peer, at, ready) VALUES ('in', $1, 0, false)
			ON CONFLICT (direction) DO UPDATE SET peer = excluded.peer, ready = false`, d.run.String())
		return err
	})
}

// emptyTables empties the tables that are filled before the control data. It locks the tally first, as a rollup does.
const emptyTables = "TRUNCATE tally, event, link, held_link, linked_muid, dedup, counter, usage, audit"

// Add implements migrate.Target.
func (d *Database) Add(ctx context.Context, p migrate.Portion) error {
	return pgx.BeginFunc(ctx, d.db.Pool, func(tx pgx.Tx) error {
		if len(p.Events) > 0 {
			if err := d.copyEvents(ctx, tx, p.Events); err != nil {
				return err
			}
		}
		b := &pgx.Batch{}
		queueKeys(b, p.Keys)
		if err := control.QueueEntries(b, p.Audit); err != nil {
			return err
		}
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		return d.noteReady(ctx, tx, false)
	})
}

func (d *Database) copyEvents(ctx context.Context, tx pgx.Tx, events []migrate.Event) error {
	deltas := count.Deltas{}
	for i := range events {
		e := &events[i]
		deltas.Add(uuid.UUID(e.Merchant), e.Time, e.Tag, e.Name, e.Bot, count.SizeOf(len(e.Raw), len(e.MUID), e.Name, e.Tag), 1)
	}
	if _, err := tx.CopyFrom(ctx, pgx.Identifier{"event"}, append([]string{"merchant", "seq", "idx", "at", "bot", "tag", "name", "muid", "raw"}, store.DetailColumns...),
		pgx.CopyFromSlice(len(events), func(i int) ([]any, error) {
			e := &events[i]
			return append([]any{uuid.UUID(e.Merchant), int64(e.At.Seq), int16(e.At.Index), e.Time, e.Bot, e.Tag, e.Name, e.MUID, e.Raw}, e.Values()...), nil
		})); err != nil {
		return err
	}
	if d.counted {
		return deltas.AddTo(ctx, tx, nil)
	}
	return deltas.AddUsageTo(ctx, tx, nil)
}

// queueKeys adds links and remembered event_ids. They are sorted, so that none is locked after a later one.
func queueKeys(b *pgx.Batch, keys []migrate.Key) {
	if len(keys) == 0 {
		return
	}
	var merchants []uuid.UUID
	var ids [][]byte
	var seen []int64
	slices.SortFunc(keys, func(a, b migrate.Key) int {
		return cmp.Or(slices.Compare(a.Merchant[:], b.Merchant[:]), slices.Compare(a.Key, b.Key))
	})
	links := write.NewLinks()
	for _, k := range keys {
		if k.IsLink() {
			links.Add(uuid.UUID(k.Merchant), store.IdentityKey(k.Key), store.MUID(k.MUID), k.Source, k.Former)
			continue
		}
		merchants, ids, seen = append(merchants, uuid.UUID(k.Merchant)), append(ids, k.Key), append(seen, k.Seen)
	}
	links.Queue(b)
	b.Queue(`INSERT INTO dedup (merchant, key, seen) SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::bigint[])
		ON CONFLICT (merchant, key) DO UPDATE SET seen = excluded.seen`, merchants, ids, seen)
}

// countMoved makes the counters of a merchant from its events. Minutes are counted first: there are fewer of them than
// events.
var countMoved = `WITH w AS MATERIALIZED (
		SELECT name, ` + count.BucketSQL("at", "60000000") + ` AS minute, tag, bot, count(*) AS n
		FROM event WHERE merchant = $1 GROUP BY 1, 2, 3, 4)
	INSERT INTO counter (merchant, level, name, bucket, tag, bot, n)
	SELECT $1, l.level, v.name, ` + count.BucketOfMinute + `, tag, bot, sum(n)::bigint FROM w, ` + count.ForEachCounter + ` GROUP BY 2, 3, 4, 5, 6`

// Index implements migrate.Target. To make the counters of all events at once takes a fraction of adding to them with each
// portion.
func (d *Database) Index(ctx context.Context, _ uint64) error {
	if d.counted {
		return nil
	}
	merchants, err := conn.Column[uuid.UUID](ctx, d.db.Pool, "SELECT merchant FROM usage ORDER BY merchant")
	if err != nil {
		return err
	}
	if err := pgx.BeginFunc(ctx, d.db.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "TRUNCATE counter; SET LOCAL work_mem = '64MB'; SET LOCAL jit = off"); err != nil {
			return err
		}
		for _, m := range merchants {
			if _, err := tx.Exec(ctx, countMoved, m); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	d.counted = true
	_, err = d.db.Pool.Exec(ctx, "ANALYZE event, counter") // so that the first pages have good plans
	return err
}

// errNotBegun is for a database that somebody has changed meanwhile.
var errNotBegun = errors.New("the database is not being filled any more")

// noteReady records whether the database is complete. It fails when another import has begun.
func (d *Database) noteReady(ctx context.Context, tx pgx.Tx, ready bool) error {
	done, err := tx.Exec(ctx, "UPDATE move SET ready = $1 WHERE direction = 'in' AND peer = $2", ready, d.run.String())
	if err == nil && done.RowsAffected() != 1 {
		err = errNotBegun
	}
	return err
}

// numberOfImport is the number of the change that brings the control data. The nodes begin with the records as they are. A
// number is missing before it, so that a node which was started on the empty database finds that it must be started again.
const numberOfImport = 2

// SetControl implements migrate.Target. It writes records as changes do. It leaves out what tells nodes of a change, because
// no node is running.
func (d *Database) SetControl(ctx context.Context, all *migrate.Control) error {
	return pgx.BeginFunc(ctx, d.db.Pool, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		for _, table := range []string{"record", "document", "file", "change"} {
			b.Queue("DELETE FROM " + table)
		}
		for _, f := range all.Files {
			b.Queue("INSERT INTO file (path, modified, content) VALUES ($1, clock_timestamp(), $2)", f.Path, f.Content)
		}
		for _, doc := range all.Documents {
			owner, _ := control.OwnerOf(doc.Merchant)
			b.Queue("INSERT INTO document (kind, merchant, id, content) VALUES ($1, $2, $3, $4)", string(doc.Kind), owner, doc.ID, doc.Content)
		}
		b.Queue("INSERT INTO change (seq, tx, kind, record) VALUES ($1, $2, $3, '{}')", numberOfImport, uuid.New(), control.ChangeOfRecords)
		for some := range slices.Chunk(all.Records, 10_000) {
			control.QueueRecords(b, numberOfImport, some)
		}
		return tx.SendBatch(ctx, b).Close()
	})
}

// Ready implements migrate.Successor.
func (d *Database) Ready(ctx context.Context, upTo uint64) (to migrate.Place, err error) {
	if to, err = d.Place(ctx); err != nil {
		return to, err
	}
	return to, pgx.BeginFunc(ctx, d.db.Pool, func(tx pgx.Tx) error {
		if err := d.noteReady(ctx, tx, true); err != nil {
			return err
		}
		b := &pgx.Batch{}
		b.Queue("SELECT setval('receipt', greatest(last_value, $1)) FROM receipt", int64(upTo))
		// This is the last flush, so that feeds end there. A run that was cut off may have left an earlier one: from there
		// on, feeds would expect all flushes.
		b.Queue("DELETE FROM flush")
		b.Queue(`INSERT INTO flush (merchant, id, node, seq, merchants) SELECT $1, $2, $1, $3,
			ARRAY(SELECT merchant FROM usage WHERE EXISTS (SELECT FROM event WHERE event.merchant = usage.merchant AND seq = $3))
			WHERE $3 > 0`, uuid.Nil, uuid.New(), int64(upTo))
		return tx.SendBatch(ctx, b).Close()
	})
}

// Finish implements migrate.Successor.
func (d *Database) Finish(ctx context.Context) error {
	return pgx.BeginFunc(ctx, d.db.Pool, func(tx pgx.Tx) error {
		done, err := tx.Exec(ctx, "DELETE FROM move WHERE direction = 'in' AND ready")
		if err != nil || done.RowsAffected() == 1 {
			return err
		}
		var filling bool
		err = tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM move WHERE direction = 'in')").Scan(&filling)
		if filling {
			err = fmt.Errorf("%s does not have everything yet", d.Name())
		}
		return err
	})
}
