package postgres

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
)

// Verify implements store.Engine. It decodes all control data, and counts all events again, one merchant after the other, to compare
// the counters. Reading every row, the server finds pages that cannot be read, and wrong checksums if it was made with them.
func (e *engine) Verify(ctx context.Context, v store.Verification) (counts store.Verified, err error) {
	if counts.Records, err = e.verifyControl(ctx, v); err != nil {
		return counts, err
	}
	var merchants []uuid.UUID
	if err := e.read(ctx, func(tx pgx.Tx) error {
		merchants = nil
		return query(ctx, tx, func(rows pgx.Rows) error {
			var m uuid.UUID
			err := rows.Scan(&m)
			merchants = append(merchants, m)
			return err
		}, "SELECT merchant FROM usage UNION SELECT merchant FROM tally ORDER BY merchant")
	}); err != nil {
		return counts, err
	}
	for i, m := range merchants {
		if err := e.read(ctx, func(tx pgx.Tx) error { return verifyMerchant(ctx, tx, m, v, &counts) }); err != nil {
			return counts, err
		}
		v.Read(store.PartEvents, uint64(i+1), uint64(len(merchants)))
	}
	return counts, nil
}

// verifyControl decodes the records of all tables, and returns how many there are.
func (e *engine) verifyControl(ctx context.Context, v store.Verification) (records uint64, err error) {
	tables := []struct {
		name string
		into func() any
	}{
		{"partner", func() any { return new(store.Partner) }},
		{"api_key", func() any { return new(store.Key) }},
		{"merchant", func() any { return new(store.Merchant) }},
		{"tag", func() any { return new(store.Tag) }},
		{"erasure", func() any { return new(store.Erasure) }},
		{"audit", func() any { return new(store.AuditEntry) }},
	}
	for i, table := range tables {
		var found []store.Finding
		n := uint64(0)
		if err := e.read(ctx, func(tx pgx.Tx) error {
			found, n = nil, 0
			return query(ctx, tx, func(rows pgx.Rows) error {
				var id string
				var text []byte
				if err := rows.Scan(&id, &text); err != nil {
					return err
				}
				n++
				if err := json.Unmarshal(text, table.into()); err != nil {
					found = append(found, store.Finding{Part: store.PartControl, Where: table.name + " " + id, Problem: "cannot be read: " + err.Error()})
				}
				return nil
			}, "SELECT id::text, record FROM "+table.name)
		}); err != nil {
			return records, err
		}
		for _, f := range found {
			v.Found(f)
		}
		records += n
		v.Read(store.PartControl, uint64(i+1), uint64(len(tables)))
	}
	return records, nil
}

// recount counts the events of a merchant as counters do, and returns how many counters, with the open tally, differ. The buckets are
// those of bucketOf.
const (
	recount = `WITH counted AS (SELECT ` + eachLevel + `, count(*) AS n FROM event AS e, ` + levels + ` WHERE merchant = $1 GROUP BY 1, 2, 3, 4, 5),
		tallied AS (SELECT minute * 60000000 AS at, name, tag, bot, n FROM tally WHERE ` + isOpen + `),
		stored AS (SELECT level, name, bucket, tag, bot, sum(n) AS n FROM (
			SELECT level, name, bucket, tag, bot, n FROM counter WHERE merchant = $1
			UNION ALL SELECT ` + eachLevel + `, e.n FROM tallied AS e, ` + levels + `) AS x GROUP BY 1, 2, 3, 4, 5)
		SELECT count(*), coalesce(sum(abs(coalesce(c.n, 0) - coalesce(s.n, 0))), 0)::bigint
		FROM counted c FULL JOIN stored s USING (level, name, bucket, tag, bot) WHERE coalesce(c.n, 0) <> coalesce(s.n, 0)`

	levels = `(VALUES (0, 60000000), (1, 3600000000), (2, 86400000000), (3, 0)) AS l(level, size), LATERAL (VALUES (e.name), ('')) AS n(name)`

	eachLevel = `l.level, n.name, CASE WHEN l.size = 0 THEN 0 ELSE (e.at - ((e.at % l.size) + l.size) % l.size) / l.size END AS bucket, e.tag, e.bot`
)

// verifyMerchant compares a merchant's events with its counters, its usage and its tags, as of one moment.
func verifyMerchant(ctx context.Context, tx pgx.Tx, m uuid.UUID, v store.Verification, counts *store.Verified) error {
	var events, sizes, links, marks, counters, different, wrong, storedEvents, storedSizes int64
	var removing bool // its events go in portions, and its counters at the end
	if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM removal WHERE merchant = $1)", m).Scan(&removing); err != nil || removing {
		return err
	}
	if err := tx.QueryRow(ctx, `SELECT count(*), coalesce(sum(length(raw) + length(muid) + length(name) + length(tag) + 8), 0)::bigint,
			(SELECT count(*) FROM link WHERE merchant = $1), (SELECT count(*) FROM dedup WHERE merchant = $1),
			(SELECT count(*) FROM counter WHERE merchant = $1),
			coalesce((SELECT events FROM usage WHERE merchant = $1), 0) + coalesce((SELECT sum(n) FROM tally WHERE `+isOpen+`), 0)::bigint,
			coalesce((SELECT bytes FROM usage WHERE merchant = $1), 0) + coalesce((SELECT sum(bytes) FROM tally WHERE `+isOpen+`), 0)::bigint
		FROM event WHERE merchant = $1`, m).Scan(&events, &sizes, &links, &marks, &counters, &storedEvents, &storedSizes); err != nil {
		return err
	}
	if err := tx.QueryRow(ctx, recount, m).Scan(&different, &wrong); err != nil {
		return err
	}
	counts.Events += uint64(events)
	counts.Links += uint64(links)
	counts.Marks += uint64(marks)
	counts.Entries += uint64(counters)
	where, of := "merchant "+m.String(), []store.MerchantID{store.MerchantID(m.String())}
	if different > 0 {
		v.Found(store.Finding{Part: store.PartIndex, Where: where, Problem: fmt.Sprintf("has %d counters that differ from its events", different),
			Events: uint64(wrong), Merchants: of})
	}
	if events != storedEvents || sizes != storedSizes {
		v.Found(store.Finding{Part: store.PartIndex, Where: where, Problem: fmt.Sprintf("has %d events of %d bytes, but %d of %d are counted as its usage",
			events, sizes, storedEvents, storedSizes), Merchants: of})
	}
	return query(ctx, tx, func(rows pgx.Rows) error {
		var tag string
		var n int64
		err := rows.Scan(&tag, &n)
		v.Found(store.Finding{Part: store.PartTags, Where: where, Problem: fmt.Sprintf("has events of the tag %s, which it does not have", tag),
			Events: uint64(n), Merchants: of})
		return err
	}, `SELECT c.tag, sum(c.n)::bigint FROM (SELECT merchant, tag, n FROM counter WHERE merchant = $1 AND level = 3 AND name = ''
			UNION ALL SELECT merchant, tag, n FROM tally WHERE `+isOpen+`) AS c
		WHERE NOT EXISTS (SELECT FROM tag t WHERE t.id = c.tag AND t.merchant = c.merchant)
		AND NOT EXISTS (SELECT FROM removal r WHERE r.merchant = c.merchant) GROUP BY c.tag HAVING sum(c.n) > 0`, m)
}
