package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/migrate"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/control"
	"mtagd/store/postgres/read"
	"mtagd/store/postgres/schema"
	"mtagd/store/rules"
)

// Database is a database into which data is copied, or from which, without an engine. It implements migrate.Successor and
// migrate.Source.
type Database struct {
	db      *conn.DB
	run     uuid.UUID // tells this import from others
	counted bool      // the counters have the events that were added so far
}

var (
	_ migrate.Successor = (*Database)(nil)
	_ migrate.Source    = (*Database)(nil)
)

// OpenDatabase connects to a database for a move, and creates its tables if it is new. Engines may have it open.
func OpenDatabase(ctx context.Context, address string, log *slog.Logger) (*Database, error) {
	db, err := conn.Open(ctx, address, conn.Options{Log: log})
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	if err := schema.Prepare(ctx, db.Pool); err != nil {
		db.Close()
		return nil, fmt.Errorf("open the database: %w", err)
	}
	return &Database{db: db, run: uuid.New()}, nil
}

// Close closes the connections.
func (d *Database) Close() { d.db.Close() }

// Name says for people which database it is.
func (d *Database) Name() string {
	c := d.db.Pool.Config().ConnConfig
	return fmt.Sprintf("postgres://%s:%d/%s", c.Host, c.Port, c.Database)
}

// Place says which database it is, filled or not. It gives the database an id if it has none.
func (d *Database) Place(ctx context.Context) (migrate.Place, error) {
	var id int64
	err := d.db.Pool.QueryRow(ctx, "INSERT INTO setting (name, value) VALUES ('id', $1) ON CONFLICT (name) DO UPDATE SET value = setting.value RETURNING value",
		rand.Int64()).Scan(&id)
	return migrate.Place{Name: d.Name(), ID: "postgres-" + strconv.FormatInt(id, 36)}, err
}

// Moved is the error of a database whose data has moved.
type Moved struct {
	To string // as PreventChanges was told
	at int64  // µs since 1970
}

func (m *Moved) Error() string {
	return fmt.Sprintf("its data has moved to %s on %s, and is not kept up to date here. Start with --data there. "+
		"To go on here all the same, without what was received since then, run DELETE FROM move WHERE direction = 'out' in the database", m.To, store.FormatTime(read.TimeAt(m.at)))
}

// refuseMoved returns an error if the database is being filled, or if its data has moved.
func refuseMoved(ctx context.Context, tx conn.Querier) error {
	var to *string
	var at int64
	return conn.Query(ctx, tx, []any{&to, &at}, func() error {
		if to == nil {
			return errors.New(`"mtagd migrate" has not finished filling this database: run it again, and it begins again`)
		}
		return &Moved{*to, at}
	}, "SELECT CASE direction WHEN 'out' THEN peer END, at FROM move WHERE direction = 'in' OR ready")
}

// Locked is a database that no other process can change, because this process holds the locks that every change needs. One
// transaction holds them. Its commit marks the database as moved. When the process ends, the server rolls the transaction
// back.
type Locked struct{ guard *conn.Guard }

// errLockLost ends a move out of the database when the connection that holds the locks is lost.
var errLockLost = errors.New("the connection to the database that keeps others from changing it was lost: run the same command again")

// lockAll also locks the tables that are written without conn.LockControl. The lock of the first one, which each flush needs,
// is strong enough to enable its trigger.
var lockAll = fmt.Sprintf(`SET LOCAL lock_timeout = '10s'; SELECT pg_advisory_xact_lock(%d), pg_advisory_xact_lock(%d);
	LOCK TABLE flush IN SHARE ROW EXCLUSIVE MODE; LOCK TABLE file, setting, audit, document IN SHARE MODE`, conn.LockRemoval, conn.LockControl)

// PreventChanges locks a database. Its nodes must be stopped. to names the destination, for error messages.
func (d *Database) PreventChanges(ctx context.Context, to string) (Locked, error) {
	if err := refuseMoved(ctx, d.db.Pool); err != nil {
		_, unconfirmed := d.db.ConfirmAll(ctx) // a mark that the standbys lack may be lost again
		return Locked{}, cmp.Or(unconfirmed, err)
	}
	var serving bool
	if err := d.db.Pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM message WHERE at > clock_timestamp() - interval '3 seconds')").Scan(&serving); err != nil {
		return Locked{}, err
	}
	if serving {
		return Locked{}, errors.New("a node of the database is running. Stop all of them, wait a few seconds, and run the same command again")
	}
	h, err := d.db.Guard(ctx, errLockLost, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, lockAll); err != nil {
			return err
		}
		// What a worker of a distributed database has only prepared would be missing in the copy.
		if err := d.db.FinishOnWorkers(ctx); err != nil {
			return err
		}
		return mark(ctx, tx, to)
	})
	if err != nil {
		return Locked{}, fmt.Errorf("keep everybody from changing the database: %w", err)
	}
	return Locked{h}, nil
}

// mark marks the database as moved. A node that runs all the same does nothing any more: the trigger refuses its flushes,
// and as a number of the table change is missing, it makes no changes and is not ready.
func mark(ctx context.Context, tx pgx.Tx, to string) error {
	b := &pgx.Batch{}
	b.Queue(`INSERT INTO move (direction, peer, at, ready) VALUES ('out', $1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, true)
		ON CONFLICT (direction) DO UPDATE SET peer = excluded.peer, at = excluded.at, ready = true`, to)
	b.Queue("INSERT INTO change (seq, tx, kind, record) SELECT coalesce(max(seq), 0) + 2, $1, $2, '{}' FROM change", uuid.New(), control.ChangeOfRecords)
	b.Queue("ALTER TABLE flush ENABLE TRIGGER moved")
	return tx.SendBatch(ctx, b).Close()
}

// Context is for the work with the database. It ends when the locks are lost.
func (l Locked) Context() context.Context { return l.guard.Held }

// Moved marks the database as moved, and releases the locks.
func (l Locked) Moved(ctx context.Context) error {
	if err := l.guard.Finish(ctx); err != nil {
		return fmt.Errorf("it is not known whether the database is marked as moved. Start nothing, and run the same command again: %w", err)
	}
	return nil
}

// Release releases the locks. After Moved it does nothing.
func (l Locked) Release() { l.guard.Release() }

// Latest implements migrate.Source. The standbys have all events up to there, and so do the workers of a distributed
// database.
func (d *Database) Latest(ctx context.Context) (store.Cursor, error) {
	seen, err := d.db.ConfirmAll(ctx)
	return store.EndOf(uint64(seen.Flush)).Cursor(), err
}

// Usage implements migrate.Data. It reads what flushes have counted.
func (d *Database) Usage(ctx context.Context, merchants []store.MerchantID) ([]store.Usage, error) {
	return read.New(d.db, nil, 0).Usage(ctx, merchants)
}

// eventsOf are the events of a merchant that were received after $2 and up to $3.
var eventsOf = "SELECT " + read.EventColumns + ", raw FROM event WHERE merchant = $1 AND seq > $2 AND seq <= $3 ORDER BY seq, idx"

// Events implements migrate.Data.
func (d *Database) Events(ctx context.Context, after, upTo uint64, use func(*migrate.Event) error) error {
	return pgx.BeginTxFunc(ctx, d.db.Pool, pgx.TxOptions{BeginQuery: conn.BeginSnapshot}, func(tx pgx.Tx) error {
		counted, err := conn.Column[uuid.UUID](ctx, tx, "SELECT merchant FROM usage")
		if err != nil {
			return err
		}
		// usage may lack new merchants.
		merchants, err := conn.Column[uuid.UUID](ctx, tx, "SELECT id FROM "+conn.Merchants+" m")
		if err != nil {
			return err
		}
		for some := range slices.Chunk(slices.Compact(slices.SortedFunc(slices.Values(append(merchants, counted...)), conn.CompareUUIDs)), 100) {
			b := &pgx.Batch{}
			for _, m := range some {
				e := &migrate.Event{Merchant: store.MerchantKey(m)}
				into := append(append([]any{&e.At.Seq, &e.At.Index, &e.Time, &e.Bot, &e.Tag, &e.Name, &e.MUID}, e.Values()...), &e.Raw)
				conn.Queue(b, into, func() error { return use(e) }, eventsOf, m, int64(after), int64(upTo))
			}
			if err := tx.SendBatch(ctx, b).Close(); err != nil {
				return err
			}
		}
		return nil
	})
}

// Keys implements migrate.Data. It passes all keys: rows do not say when they were written.
func (d *Database) Keys(ctx context.Context, _ uint64, use func(*migrate.Key) error) (moment uint64, err error) {
	for _, sql := range []string{
		"SELECT l.merchant, l.key, l.muid, coalesce(h.source, 0), false, 0 FROM link l LEFT JOIN held_link h USING (merchant, key, muid)",
		"SELECT h.merchant, h.key, h.muid, h.source, true, 0 FROM held_link h LEFT JOIN link l USING (merchant, key, muid) WHERE l.key IS NULL",
		"SELECT merchant, key, NULL::bytea, 0, false, seen FROM dedup",
	} {
		var k migrate.Key
		into := []any{(*[16]byte)(&k.Merchant), &k.Key, &k.MUID, &k.Source, &k.Former, &k.Seen}
		if err := conn.Query(ctx, d.db.Pool, into, func() error { return use(&k) }, sql); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// Control implements migrate.Data.
func (d *Database) Control(ctx context.Context) (*migrate.Control, error) {
	c := &migrate.Control{}
	return c, d.db.Read(ctx, func(tx pgx.Tx) error {
		records, err := control.ReadRecords(ctx, tx, "body IS NOT NULL")
		if err != nil {
			return err
		}
		c.Records = rules.Moved(conn.Map(records, func(r *control.Record) rules.Record { return r.Record }))
		if c.Documents, err = store.KeptDocuments(func(kind store.DocumentKind) ([]store.Document, error) {
			return control.DocumentsIn(ctx, tx, " AND kind = $1", string(kind))
		}); err != nil {
			return err
		}
		// Certificates, but not what only the nodes of a database need.
		c.Files, err = conn.CollectRows(ctx, tx, func(f *migrate.File) []any { return []any{&f.Path, &f.Content} }, "SELECT path, content FROM file WHERE split_part(path, '/', 1) NOT IN ('challenges', 'limits', 'scrub') ORDER BY path")
		return err
	})
}

// Audit implements migrate.Data.
func (d *Database) Audit(ctx context.Context, after store.AuditID, use func(*store.AuditEntry) error) error {
	var e store.AuditEntry // pgx empties it before each row
	return conn.Query(ctx, d.db.Pool, []any{&e}, func() error { return use(&e) }, "SELECT record FROM audit WHERE id > $1 ORDER BY id", int64(after))
}
