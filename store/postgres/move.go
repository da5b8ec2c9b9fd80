package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/move"
	"mtagd/store/rules"
)

// Database is a database into which data is moved, or from which, without an engine. It implements move.Target and move.Source.
type Database struct {
	e       *engine // only the connections and the log are there
	counted bool    // the counters have the events that were moved in so far
}

// OpenDatabase connects to a database for a move, and creates its tables if it is new. Engines may have it open.
func OpenDatabase(ctx context.Context, address string, log *slog.Logger) (*Database, error) {
	config, err := parseURL(address)
	if err != nil {
		return nil, err
	}
	if err := adaptToPooler(ctx, address, config); err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	hosts := newHosts(config)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	d := &Database{e: &engine{pool: pool, hosts: hosts, log: log, reading: newReads(config)}}
	if err := errors.Join(checkDurability(ctx, pool), migrate(ctx, pool)); err != nil {
		pool.Close()
		return nil, fmt.Errorf("open the database: %w", err)
	}
	return d, nil
}

// Close closes the connections.
func (d *Database) Close() { d.e.pool.Close() }

// Name says for people which database it is.
func (d *Database) Name() string {
	c := d.e.pool.Config().ConnConfig
	return fmt.Sprintf("postgres://%s:%d/%s", c.Host, c.Port, c.Database)
}

// Place says which database it is, filled or not. It gives the database an id if it has none.
func (d *Database) Place(ctx context.Context) (move.Place, error) {
	p := move.Place{Name: d.Name()}
	var id int64
	err := pgx.BeginFunc(ctx, d.e.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "INSERT INTO setting (name, value) VALUES ('id', $1) ON CONFLICT (name) DO NOTHING", rand.Int64()); err != nil {
			return err
		}
		return tx.QueryRow(ctx, "SELECT value FROM setting WHERE name = 'id'").Scan(&id)
	})
	p.ID = "postgres-" + strconv.FormatInt(id, 36)
	return p, err
}

// checkMove refuses a database that is being filled, or whose data has moved.
func checkMove(ctx context.Context, pool *pgxpool.Pool) error {
	filling, err := currentMove(ctx, pool)
	if err == nil && filling != nil {
		err = errors.New(`"mtagd migrate" has not finished filling this database: run it again`)
	}
	if err != nil {
		return err
	}
	to, at, moved, err := movedTo(ctx, pool)
	if err == nil && moved {
		err = fmt.Errorf("its data has moved to %s on %s, and is not kept up to date here. Start with --data there. "+
			"To go on here all the same, without what was received since then, run DELETE FROM move WHERE direction = 'out' in the database", to.Name, store.FormatTime(at))
	}
	return err
}

// moveRow is the row of the table move.
type moveRow struct {
	source string
	at     int64
}

// currentMove returns the move into the database that is under way; nil when there is none.
func currentMove(ctx context.Context, tx querier) (m *moveRow, err error) {
	err = query(ctx, tx, func(rows pgx.Rows) error {
		m = &moveRow{}
		return rows.Scan(&m.source, &m.at)
	}, "SELECT peer, at FROM move WHERE direction = 'in'")
	return m, err
}

// Events implements move.Data. It reads the merchants' events of one span of time after the other.
func (d *Database) Events(ctx context.Context, after, upTo uint64, use func(*move.Event) error) error {
	const few, many = 5_000, 50_000 // events of a span
	span := int64(time.Second / time.Microsecond)
	first, err := forCitus(ctx, d.e.pool, firstEvents, firstEventsWithCitus)
	if err != nil {
		return err
	}
	for at := int64(after); ; {
		merchants, next, err := d.merchantsAfter(ctx, first, at, int64(upTo))
		if err != nil || len(merchants) == 0 {
			return err
		}
		end := min(next+span, int64(upTo))
		n := 0
		if err := query(ctx, d.e.pool, func(rows pgx.Rows) error {
			n++
			e, err := scanMoved(rows)
			if err != nil {
				return err
			}
			return use(e)
		}, `SELECT x.* FROM unnest($1::uuid[]) AS w(merchant) CROSS JOIN LATERAL (SELECT merchant, seq, idx, at, bot, tag, name, muid, raw, by_claim FROM event
			WHERE event.merchant = w.merchant AND seq > $2 AND seq <= $3) AS x ORDER BY x.seq, x.idx`, merchants, at, end); err != nil {
			return err
		}
		at = end
		switch {
		case n < few:
			span *= 4
		case n > many:
			span = max(span/2, 1)
		}
	}
}

// The statements that find the first event of each merchant after the receipt $1 and up to $2. A merchant whose first rows of the tally
// are not folded yet has no usage.
const (
	firstEvents = `SELECT w.merchant, x.seq FROM (SELECT merchant FROM usage UNION SELECT m.id FROM ` + merchants + ` m) AS w` + firstEvent

	// firstEventsWithCitus has only tables that are distributed by merchant, so that Citus accepts it. It reads the dead rows of the tally.
	firstEventsWithCitus = `SELECT w.merchant, x.seq FROM (SELECT merchant FROM usage UNION SELECT merchant FROM tally) AS w` + firstEvent

	firstEvent = ` CROSS JOIN LATERAL (SELECT seq FROM event WHERE event.merchant = w.merchant AND seq > $1 AND seq <= $2 ORDER BY seq LIMIT 1) AS x`
)

// merchantsAfter returns the merchants that have events after one receipt and up to another, and the first receipt of these. sql is one of
// the statements above.
func (d *Database) merchantsAfter(ctx context.Context, sql string, after, upTo int64) (merchants []uuid.UUID, first int64, err error) {
	err = query(ctx, d.e.pool, func(rows pgx.Rows) error {
		var m uuid.UUID
		var seq int64
		err := rows.Scan(&m, &seq)
		if len(merchants) == 0 || seq < first {
			first = seq
		}
		merchants = append(merchants, m)
		return err
	}, sql, after, upTo)
	return merchants, first, err
}

func scanMoved(rows pgx.Rows) (*move.Event, error) {
	var e move.Event
	var m uuid.UUID
	var seq int64
	var idx int16
	err := rows.Scan(&m, &seq, &idx, &e.Time, &e.Bot, &e.Tag, &e.Name, &e.MUID, &e.Raw, &e.ByClaim)
	e.Merchant, e.At = codec.MerchantKey(m), positionOf(seq, idx)
	return &e, err
}

// seenLate is how long after its time a remembered event_id may be committed. Flushes take seconds.
const seenLate = 10 * time.Minute

// Keys implements move.Data. It always passes all links: their rows do not say when they were written.
func (d *Database) Keys(ctx context.Context, since uint64, use func(*move.Key) error) (moment uint64, err error) {
	now, err := d.e.clock(ctx)
	if err != nil {
		return 0, err
	}
	for former, sql := range map[bool]string{
		false: "SELECT l.merchant, l.key, l.muid, coalesce(h.source, 0) FROM link l LEFT JOIN held_link h USING (merchant, key, muid)",
		true:  "SELECT h.merchant, h.key, h.muid, h.source FROM held_link h LEFT JOIN link l USING (merchant, key, muid) WHERE l.key IS NULL",
	} {
		if err := query(ctx, d.e.pool, func(rows pgx.Rows) error {
			var m uuid.UUID
			k := move.Key{Former: former}
			if err := rows.Scan(&m, &k.Key, &k.MUID, &k.Source); err != nil {
				return err
			}
			k.Merchant = codec.MerchantKey(m)
			return use(&k)
		}, sql); err != nil {
			return 0, err
		}
	}
	return uint64(now.UnixMicro()), query(ctx, d.e.pool, func(rows pgx.Rows) error {
		var m uuid.UUID
		var k move.Key
		if err := rows.Scan(&m, &k.Key, &k.Seen); err != nil {
			return err
		}
		k.Merchant = codec.MerchantKey(m)
		return use(&k)
	}, "SELECT merchant, key, seen FROM dedup WHERE seen >= $1", int64(since)-seenLate.Microseconds())
}

// Control implements move.Data.
func (d *Database) Control(ctx context.Context) (c *move.Control, err error) {
	err = d.e.read(ctx, func(tx pgx.Tx) error {
		loaded, err := loadState(ctx, tx)
		if err != nil {
			return err
		}
		c = rules.New(nil, loaded, d.e.log).Export()
		// Certificates, but not what only the nodes of a database need.
		return query(ctx, tx, func(rows pgx.Rows) error {
			var f move.File
			err := rows.Scan(&f.Path, &f.Content)
			c.Files = append(c.Files, f)
			return err
		}, "SELECT path, content FROM file WHERE split_part(path, '/', 1) NOT IN ('challenges', 'limits', 'scrub') ORDER BY path")
	})
	return c, err
}

// Audit implements move.Data.
func (d *Database) Audit(ctx context.Context, after store.AuditID, use func(*store.AuditEntry) error) error {
	return query(ctx, d.e.pool, func(rows pgx.Rows) error {
		var text []byte
		if err := rows.Scan(&text); err != nil {
			return err
		}
		var e store.AuditEntry
		if err := json.Unmarshal(text, &e); err != nil {
			return err
		}
		return use(&e)
	}, "SELECT record FROM audit WHERE id > $1 ORDER BY id", int64(after))
}
