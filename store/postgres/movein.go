package postgres

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/move"
)

var _ move.Target = (*Database)(nil)

// Begin implements move.Target.
func (d *Database) Begin(ctx context.Context, source string) (at uint64, err error) {
	d.counted = false
	err = pgx.BeginFunc(ctx, d.e.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", lockControl); err != nil {
			return err
		}
		filling, err := currentMove(ctx, tx)
		switch {
		case err != nil:
			return err
		case filling != nil && filling.source != source:
			return fmt.Errorf("%s is being filled from another store. To fill it from this one, drop and create the database", d.Name())
		case filling != nil:
			at = uint64(filling.at)
			// Links are copied whole again: some of those that are here may have been removed in the source.
			if _, err := tx.Exec(ctx, "TRUNCATE link, held_link, linked_muid, dedup"); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "UPDATE move SET ready = false WHERE direction = 'in'")
			return err
		}
		to, at, moved, err := movedTo(ctx, tx)
		switch {
		case err != nil:
			return err
		case moved && to.ID == "":
			return fmt.Errorf("the data of %s has moved to %s, on %s, with an earlier version of mtagd, which has not noted the id of that store. "+
				"To fill it again, drop and create the database", d.Name(), to.Name, store.FormatTime(at))
		case moved && to.ID != source:
			return fmt.Errorf("the data of %s has moved to %s, on %s: only the data of that store replaces what is left here. "+
				"To fill it from another one all the same, drop and create the database", d.Name(), to.Name, store.FormatTime(at))
		case moved:
			return d.reuse(ctx, tx, source)
		}
		var used bool
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT 1 FROM partner) OR EXISTS (SELECT 1 FROM audit) OR EXISTS (SELECT 1 FROM usage) OR EXISTS (SELECT 1 FROM tally)").Scan(&used); err != nil {
			return err
		}
		if used {
			return fmt.Errorf("%s is not empty: data can only be moved into a new database", d.Name())
		}
		_, err = tx.Exec(ctx, "INSERT INTO move (direction, peer, at, ready) VALUES ('in', $1, 0, false)", source)
		return err
	})
	return at, err
}

// reuse empties a database whose data has moved out, and begins to fill it again from the store that has the data now.
func (d *Database) reuse(ctx context.Context, tx pgx.Tx, source string) error {
	for _, sql := range []string{"DELETE FROM move WHERE direction = 'out'", "ALTER TABLE flush DISABLE TRIGGER moved", "TRUNCATE flush"} {
		if _, err := tx.Exec(ctx, sql); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, "INSERT INTO move (direction, peer, at, ready) VALUES ('in', $1, 0, false)", source); err != nil {
		return err
	}
	return d.empty(ctx, tx)
}

// movedTables are the tables that a move fills before its end. A fold locks the tally first, and so does the move that empties them.
var movedTables = []string{"tally", "event", "link", "held_link", "linked_muid", "dedup", "counter", "usage", "audit"}

// Clear implements move.Target.
func (d *Database) Clear(ctx context.Context) error {
	return pgx.BeginFunc(ctx, d.e.pool, func(tx pgx.Tx) error {
		d.counted = false
		if err := d.empty(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE move SET at = 0, ready = false WHERE direction = 'in'")
		return err
	})
}

// empty removes what a move fills before its end.
func (d *Database) empty(ctx context.Context, tx pgx.Tx) error {
	for _, table := range movedTables {
		if _, err := tx.Exec(ctx, "TRUNCATE "+table); err != nil {
			return err
		}
	}
	return nil
}

// Add implements move.Target.
func (d *Database) Add(ctx context.Context, b *move.Batch) error {
	tallies := tallies{}
	for i := range b.Events {
		e := &b.Events[i]
		tallies.add(uuid.UUID(e.Merchant), e.Time, e.Tag, e.Name, e.Bot, sizeOf(len(e.Raw), len(e.MUID), e.Name, e.Tag), 1)
	}
	return pgx.BeginFunc(ctx, d.e.pool, func(tx pgx.Tx) error {
		if len(b.Events) > 0 {
			if _, err := tx.CopyFrom(ctx, pgx.Identifier{"event"}, []string{"merchant", "seq", "idx", "at", "bot", "tag", "name", "muid", "raw", "by_claim"},
				pgx.CopyFromSlice(len(b.Events), func(i int) ([]any, error) {
					e := &b.Events[i]
					return []any{uuid.UUID(e.Merchant), int64(e.At.Seq), int16(e.At.Index), e.Time, e.Bot, e.Tag, e.Name, e.MUID, e.Raw, e.ByClaim}, nil
				})); err != nil {
				return err
			}
			add := tallies.addTo
			if !d.counted {
				add = tallies.addUsageTo
			}
			if err := add(ctx, tx, nil); err != nil {
				return err
			}
		}
		return d.note(ctx, tx, "UPDATE move SET at = $1 WHERE direction = 'in'", int64(b.UpTo))
	})
}

// countMoved makes the counters of a merchant from its events. Minutes are counted first: there are fewer of them than events.
var countMoved = `WITH minute AS MATERIALIZED (
		SELECT name, ` + bucketSQL("at", "60000000") + ` AS bucket, tag, bot, count(*) AS n
		FROM event WHERE merchant = $1 GROUP BY 1, 2, 3, 4)
	INSERT INTO counter (merchant, level, name, bucket, tag, bot, n)
	SELECT $1, l.level, v.name, CASE WHEN l.size = 0 THEN 0 ELSE ` + bucketSQL("bucket", "l.size") + ` END, tag, bot, sum(n)::bigint
	FROM minute, (VALUES (0, 1), (1, 60), (2, 1440), (3, 0)) AS l(level, size), LATERAL (VALUES (minute.name), ('')) AS v(name)
	GROUP BY 2, 3, 4, 5, 6`

// Index implements move.Target. To make the counters of all events at once takes a fraction of adding to them with each portion. Those that
// an earlier call has made are made again.
func (d *Database) Index(ctx context.Context) error {
	merchants, err := listMerchants(ctx, d.e.pool, "SELECT merchant FROM usage ORDER BY merchant")
	if err != nil {
		return err
	}
	if err := pgx.BeginFunc(ctx, d.e.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "TRUNCATE counter"); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SELECT set_config('work_mem', '64MB', true), set_config('jit', 'off', true)"); err != nil {
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
	_, err = d.e.pool.Exec(ctx, "ANALYZE event, counter") // so that the first pages have good plans
	return err
}

// errNotBegun is for a database that somebody has changed meanwhile.
var errNotBegun = errors.New("the database is not being filled any more")

// note changes the row of the move.
func (d *Database) note(ctx context.Context, tx pgx.Tx, sql string, args ...any) error {
	done, err := tx.Exec(ctx, sql, args...)
	if err == nil && done.RowsAffected() != 1 {
		err = errNotBegun
	}
	return err
}

// AddKeys implements move.Target.
func (d *Database) AddKeys(ctx context.Context, keys []move.Key) error {
	var ids struct {
		merchants []uuid.UUID
		keys      [][]byte
	}
	var seen []int64
	slices.SortFunc(keys, func(a, b move.Key) int {
		return cmp.Or(slices.Compare(a.Merchant[:], b.Merchant[:]), slices.Compare(a.Key, b.Key))
	})
	f := newFlush(uuid.Nil, nil)
	for _, k := range keys {
		if !k.IsLink() {
			ids.merchants, ids.keys, seen = append(ids.merchants, uuid.UUID(k.Merchant)), append(ids.keys, k.Key), append(seen, k.Seen)
			continue
		}
		at := linkKey{uuid.UUID(k.Merchant), store.IdentityKey(k.Key)}
		if !k.Former {
			f.changed[at] = link{muid: store.MUID(k.MUID)}
		}
		held := heldKey{at, store.MUID(k.MUID)}
		f.held[held], f.kept[held] = max(f.held[held], k.Source), true
	}
	return pgx.BeginFunc(ctx, d.e.pool, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		f.queueLinks(b)
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO dedup (merchant, key, seen) SELECT * FROM unnest($1::uuid[], $2::bytea[], $3::bigint[])
			ON CONFLICT (merchant, key) DO UPDATE SET seen = excluded.seen`, ids.merchants, ids.keys, seen)
		return err
	})
}

// LastAudit implements move.Target.
func (d *Database) LastAudit(ctx context.Context) (last store.AuditID, err error) {
	err = d.e.pool.QueryRow(ctx, "SELECT coalesce(max(id), 0) FROM audit").Scan(&last)
	return last, err
}

// AddAudit implements move.Target.
func (d *Database) AddAudit(ctx context.Context, entries []store.AuditEntry) error {
	_, err := d.e.pool.CopyFrom(ctx, pgx.Identifier{"audit"}, []string{"id", "at", "partner", "record"},
		pgx.CopyFromSlice(len(entries), func(i int) ([]any, error) {
			e := entries[i]
			var partner *uuid.UUID
			if key, ok := keyOf(e.Partner); ok {
				partner = &key
			}
			text, err := json.Marshal(e)
			return []any{int64(e.ID), e.At, partner, text}, err
		}))
	return err
}

// SetControl implements move.Target. It writes as changes do, but for what nodes need to know of a change: there are none.
func (d *Database) SetControl(ctx context.Context, control *move.Control) error {
	return pgx.BeginFunc(ctx, d.e.pool, func(tx pgx.Tx) error {
		c := &change{e: d.e, ctx: ctx, tx: tx, id: uuid.New()}
		for _, table := range []string{"suppressed", "erasure", "removal", "expiry", "reply", "claim", "tag", "merchant", "api_key", "session", "partner", "file", "document"} {
			c.exec("DELETE FROM " + table)
		}
		c.exec("INSERT INTO setting (name, value) VALUES ('retention', $1) ON CONFLICT (name) DO UPDATE SET value = excluded.value", int64(control.Retention))
		for _, p := range control.Partners {
			c.putPartner(p)
		}
		for _, k := range control.Keys {
			c.putKey(k.Key)
			if k.LastUse != 0 {
				c.exec("UPDATE api_key SET used = $2 WHERE id = $1", string(k.ID), timeAt(k.LastUse))
			}
		}
		for _, m := range control.Merchants {
			c.exec("INSERT INTO merchant (id, partner, ordinal, retention, record) VALUES ($1, $2, $3, $4, $5)",
				string(m.ID), string(m.Partner), int64(m.Ordinal), int(m.Retention), c.encode(m.Merchant))
		}
		holder := map[string]store.TagID{}
		for _, claim := range control.Claims {
			holder[claim.Domain] = claim.Tag
		}
		for _, t := range control.Tags {
			t.ClaimLost = t.Type == store.ServerSide && holder[t.Domain] != t.ID
			c.putTag(t)
		}
		for _, claim := range control.Claims {
			c.claim(claim.Domain, claim.Tag)
		}
		for _, r := range control.Replies {
			key, err := hex.DecodeString(r.Key)
			if err != nil {
				return err
			}
			c.exec("INSERT INTO reply (partner, key, at, record) VALUES ($1, $2, $3, $4)", string(r.Partner), key, r.At,
				c.encode(reply{r.At, r.Merchant, r.Name, r.Domain, r.Secret, r.CreatedAt, r.IssuedKey}))
		}
		for _, r := range control.Removals {
			c.exec("INSERT INTO removal (merchant, partner, at, record) VALUES ($1, $2, $3, $4)", string(r.Merchant), string(r.Partner), r.At, c.encode(r))
		}
		for _, e := range control.Erasures {
			c.exec("INSERT INTO erasure (id, merchant, at, done, record) VALUES ($1, $2, $3, $4, $5)",
				string(e.ID), string(e.Merchant), e.At, e.State == store.ErasureDone, c.encode(e))
		}
		for of := range slices.Chunk(control.Suppressed, 1000) {
			merchants, keys := make([]string, len(of)), make([][]byte, len(of))
			for i := range of {
				merchants[i], keys[i] = string(of[i].Merchant), of[i].Key[:]
			}
			c.exec("INSERT INTO suppressed (merchant, key) SELECT * FROM unnest($1::uuid[], $2::bytea[])", merchants, keys)
		}
		for _, f := range control.Files {
			c.exec("INSERT INTO file (path, modified, content) VALUES ($1, clock_timestamp(), $2)", f.Path, f.Content)
		}
		for _, doc := range control.Documents {
			c.putDocument(doc, 1)
		}
		// The nodes begin with the tables as they are. An entry is missing here, so that a node which was started on the empty
		// database finds that it must be started again.
		c.exec("DELETE FROM change")
		c.exec("INSERT INTO change (seq, tx, kind, record) VALUES ($1, $2, $3, '{}')", c.last+2, c.id, string(partnerSet))
		return c.failed
	})
}

// Ready implements move.Target.
func (d *Database) Ready(ctx context.Context, upTo uint64) (to move.Place, err error) {
	if to, err = d.Place(ctx); err != nil {
		return to, err
	}
	return to, pgx.BeginFunc(ctx, d.e.pool, func(tx pgx.Tx) error {
		if err := d.note(ctx, tx, "UPDATE move SET ready = true WHERE direction = 'in' AND at = $1", int64(upTo)); err != nil {
			return err
		}
		// Events of merchants that were deleted while nobody copied.
		if _, err := tx.Exec(ctx, `INSERT INTO removal (merchant, partner, at) SELECT merchant, $1, clock_timestamp() FROM usage
			WHERE merchant NOT IN (SELECT id FROM merchant) ON CONFLICT DO NOTHING`, uuid.Nil); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, "SELECT setval('receipt', greatest(last_value, $1)) FROM receipt", int64(upTo)); err != nil {
			return err
		}
		// The last flush, so that feeds end there. An earlier move that was cut off may have left one: feeds would take it that all
		// flushes since then are there.
		if _, err := tx.Exec(ctx, "DELETE FROM flush"); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO flush (merchant, id, node, seq, merchants) SELECT $1, $2, $1, $3,
			ARRAY(SELECT merchant FROM usage WHERE EXISTS (SELECT FROM event WHERE event.merchant = usage.merchant AND seq = $3))
			WHERE $3 > 0`, uuid.Nil, uuid.New(), int64(upTo))
		return err
	})
}

// Finish implements move.Target.
func (d *Database) Finish(ctx context.Context) error {
	return pgx.BeginFunc(ctx, d.e.pool, func(tx pgx.Tx) error {
		done, err := tx.Exec(ctx, "DELETE FROM move WHERE direction = 'in' AND ready")
		if err != nil || done.RowsAffected() == 1 {
			return err
		}
		filling, err := currentMove(ctx, tx)
		if filling != nil {
			err = fmt.Errorf("%s does not have everything yet", d.Name())
		}
		return err
	})
}
