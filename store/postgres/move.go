package postgres

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/move"
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
	firstEvents = `SELECT w.merchant, x.seq FROM (SELECT merchant FROM usage UNION SELECT id FROM merchant) AS w` + firstEvent

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
		c = &move.Control{Retention: store.Forever}
		r := controlReader{ctx: ctx, tx: tx}
		r.each("SELECT value FROM setting WHERE name = 'retention'", func(rows pgx.Rows) error { return rows.Scan(&c.Retention) })
		records(&r, "SELECT record FROM partner ORDER BY id", &c.Partners)
		records(&r, "SELECT record FROM tag ORDER BY id", &c.Tags)
		records(&r, "SELECT record FROM erasure ORDER BY id", &c.Erasures)
		r.each("SELECT record, used FROM api_key ORDER BY id", func(rows pgx.Rows) (err error) {
			var text []byte
			var used *time.Time
			if err := rows.Scan(&text, &used); err != nil {
				return err
			}
			k := move.Issued{}
			if k.Key, err = decode[store.Key](text); used != nil {
				k.LastUse = used.UnixMicro()
			}
			c.Keys = append(c.Keys, k)
			return err
		})
		r.each("SELECT record, ordinal FROM merchant ORDER BY id", func(rows pgx.Rows) (err error) {
			var text []byte
			m := move.Merchant{}
			if err := rows.Scan(&text, &m.Ordinal); err != nil {
				return err
			}
			m.Merchant, err = decode[store.Merchant](text)
			c.Merchants = append(c.Merchants, m)
			return err
		})
		r.each("SELECT domain, tag FROM claim ORDER BY domain", func(rows pgx.Rows) error {
			var claim move.Claim
			err := rows.Scan(&claim.Domain, &claim.Tag)
			c.Claims = append(c.Claims, claim)
			return err
		})
		r.each("SELECT partner::text, key, record FROM reply ORDER BY partner, key", func(rows pgx.Rows) error {
			var of move.Reply
			var key, text []byte
			if err := rows.Scan(&of.Partner, &key, &text); err != nil {
				return err
			}
			what, err := decode[reply](text)
			of.Key, of.At, of.Merchant, of.Name, of.Domain, of.Secret, of.CreatedAt, of.IssuedKey = hex.EncodeToString(key),
				what.At, what.Merchant, what.Name, what.Domain, what.Secret, what.CreatedAt, what.IssuedKey
			c.Replies = append(c.Replies, of)
			return err
		})
		r.each("SELECT "+columnsOfRemoval+" FROM removal ORDER BY merchant", func(rows pgx.Rows) error {
			of, err := scanRemoval(rows)
			c.Removals = append(c.Removals, of)
			return err
		})
		r.each("SELECT merchant::text, key FROM suppressed ORDER BY merchant, key", func(rows pgx.Rows) error {
			var of move.Suppressed
			var key []byte
			err := rows.Scan(&of.Merchant, &key)
			of.Key = store.IdentityKey(key)
			c.Suppressed = append(c.Suppressed, of)
			return err
		})
		// Certificates, but not what only the nodes of a database need.
		r.each("SELECT path, content FROM file WHERE split_part(path, '/', 1) NOT IN ('challenges', 'limits', 'scrub') ORDER BY path", func(rows pgx.Rows) error {
			var f move.File
			err := rows.Scan(&f.Path, &f.Content)
			c.Files = append(c.Files, f)
			return err
		})
		r.each(selectDocuments, func(rows pgx.Rows) error {
			doc, err := scanDocument(rows)
			if doc.Kind.IsKept() {
				c.Documents = append(c.Documents, doc)
			}
			return err
		})
		slices.SortFunc(c.Documents, store.CompareDocuments)
		return r.err
	})
	return c, err
}

// controlReader reads one table after the other, until the first error.
type controlReader struct {
	ctx context.Context
	tx  pgx.Tx
	err error
}

func (r *controlReader) each(sql string, use func(rows pgx.Rows) error) {
	if r.err == nil {
		r.err = query(r.ctx, r.tx, use, sql)
	}
}

func records[T any](r *controlReader, sql string, all *[]T) {
	r.each(sql, func(rows pgx.Rows) error {
		var text []byte
		if err := rows.Scan(&text); err != nil {
			return err
		}
		v, err := decode[T](text)
		*all = append(*all, v)
		return err
	})
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
