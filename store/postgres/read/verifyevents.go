package read

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/control"
	"mtagd/store/postgres/count"
)

// The events of a merchant are verified in pieces: a transaction that lasts for minutes would keep the server from removing
// dead rows. Each piece is some hours of event_time, read in a transaction of its own. Only what was read as of one moment
// is compared:
//
//   - for each piece, its events with the counters of its minutes and hours and the pending deltas;
//   - at the end, the counters of days and of all time with those of hours, and usage with the counters. A rollup changes
//     all of them at once;
//   - at the end, the size of the events that existed at the beginning with usage, less the events since then. This is
//     skipped if events were removed meanwhile.

// verifyPiece is about how many events a piece has. An hour with more is one piece.
const verifyPiece = 200_000

// eventsPerName is how many events a piece has at least for each pair of level and name. A piece looks for the counters of
// all pairs, and that must not take longer than reading its events.
const eventsPerName = 2

var (
	// recount returns how many counters of a piece differ, by how many events in all, and the range of time that they are
	// in.
	recount = `WITH RECURSIVE named AS (` + countedNames + `), counted AS (SELECT ` + eachLevel + `, count(*) AS n FROM event AS e, ` + levels + `
			WHERE merchant = $1 AND at >= $2 AND at < $3 GROUP BY 1, 2, 3, 4, 5, 6),
		tallied AS (SELECT minute * 60000000 AS at, name, tag, bot, n FROM tally
			WHERE ` + count.IsPending + ` AND minute >= $2::bigint / 60000000 AND minute < $3::bigint / 60000000),
		stored AS (SELECT level, size, name, bucket, tag, bot, sum(n) AS n FROM (
			SELECT level, size, name, c.* FROM named JOIN ` + sizes + ` USING (level) CROSS JOIN LATERAL (SELECT bucket, tag, bot, n FROM counter
				WHERE merchant = $1 AND level = named.level AND name = named.name AND bucket >= $2::bigint / size AND bucket < $3::bigint / size OFFSET 0) AS c
			UNION ALL SELECT ` + eachLevel + `, e.n FROM tallied AS e, ` + levels + `) AS x GROUP BY 1, 2, 3, 4, 5, 6)
		SELECT count(*), coalesce(sum(abs(coalesce(c.n, 0) - coalesce(s.n, 0))), 0)::bigint,
			coalesce(min(bucket * size), 0), coalesce(max((bucket + 1) * size), 0)
		FROM counted c FULL JOIN stored s USING (level, size, name, bucket, tag, bot) WHERE coalesce(c.n, 0) <> coalesce(s.n, 0)`

	// countedNames finds the names of a merchant's counters, with one index search for each name. With the names, a query
	// for a range of time reads only the counters of that range.
	countedNames = `(SELECT level, name FROM counter WHERE merchant = $1 AND level < 2 ORDER BY level, name LIMIT 1)
		UNION ALL SELECT next.* FROM named CROSS JOIN LATERAL (SELECT level, name FROM counter
			WHERE merchant = $1 AND level < 2 AND (level, name) > (named.level, named.name) ORDER BY level, name LIMIT 1) AS next`

	countNames = `WITH RECURSIVE named AS (` + countedNames + `) SELECT count(*) FROM named`

	sizes     = `(VALUES (0, 60000000), (1, 3600000000)) AS l(level, size)`
	levels    = sizes + `, LATERAL (VALUES (e.name), ('')) AS n(name)`
	eachLevel = `l.level, l.size, n.name, ` + count.BucketSQL("e.at", "l.size") + ` AS bucket, e.tag, e.bot`

	// A large body is in pages of its own, and its length is known without them. || makes the server read it.
	sumSizes = `coalesce(sum(length(raw || ''::bytea) + length(muid) + length(name) + length(tag) + 8)`

	// countRest reads columns that no index has. Otherwise the server could count entries of an index, without reading the
	// rows.
	countRest = `SELECT (SELECT count(*) FROM (SELECT key, muid FROM link WHERE merchant = $1
		UNION SELECT key, muid FROM held_link WHERE merchant = $1) AS l), (SELECT count(abs(seen)) FROM dedup WHERE merchant = $1),
		(SELECT count(abs(n)) FROM counter WHERE merchant = $1)`

	// compareLevels returns how many counters of days and of all time are not the sums of their hours.
	compareLevels = `WITH summed AS (SELECT l.level, c.name, CASE WHEN l.level = 3 THEN 0 ELSE ` + count.BucketSQL("c.bucket", "24") + ` END AS bucket,
			c.tag, c.bot, sum(c.n) AS n FROM counter AS c, (VALUES (2), (3)) AS l(level) WHERE c.merchant = $1 AND c.level = 1 GROUP BY 1, 2, 3, 4, 5),
		stored AS (SELECT level, name, bucket, tag, bot, n FROM counter WHERE merchant = $1 AND level IN (2, 3))
		SELECT count(*) FROM summed c FULL JOIN stored s USING (level, name, bucket, tag, bot) WHERE coalesce(c.n, 0) <> coalesce(s.n, 0)`

	unknownTags = `SELECT c.tag, sum(c.n)::bigint FROM (SELECT merchant, tag, n FROM counter WHERE merchant = $1 AND level = 3 AND name = ''
			UNION ALL SELECT merchant, tag, n FROM tally WHERE ` + count.IsPending + `) AS c
		WHERE NOT EXISTS (SELECT FROM record t WHERE t.kind = 'tags' AND t.id = c.tag AND t.body::json->>'merchantId' = c.merchant::text) GROUP BY c.tag HAVING sum(c.n) > 0`
)

// merchantCheck verifies the events of one merchant.
type merchantCheck struct {
	merchant uuid.UUID
	last     int64 // the receipt of the last event that was there at the beginning
	n, bytes int64 // of the events up to it
}

// verifyMerchant compares a merchant's events with its counters, its usage and its tags. It calls read after each piece. It
// stops when the merchant is deleted meanwhile: then events are removed in portions, and counters only at the end.
func (r *Reader) verifyMerchant(ctx context.Context, m uuid.UUID, v store.Verification, counts *store.Verified, read func()) error {
	c := merchantCheck{merchant: m}
	var bounds []int64
	if removed, err := r.readUnlessRemoved(ctx, m, func(tx pgx.Tx) (err error) {
		if err := tx.QueryRow(ctx, "SELECT coalesce(max(seq), 0) FROM event WHERE merchant = $1", m).Scan(&c.last); err != nil {
			return err
		}
		var names int64
		if err := tx.QueryRow(ctx, countNames, m).Scan(&names); err != nil {
			return err
		}
		bounds, err = pieceBounds(ctx, tx, m, max(r.verifyPiece, eventsPerName*names))
		return err
	}); err != nil || removed {
		return err
	}
	var found []store.Finding // reported outside of transactions
	for i, from := range bounds[:len(bounds)-1] {
		var all, n, size int64
		if removed, err := r.readUnlessRemoved(ctx, m, func(tx pgx.Tx) (err error) {
			if err := tx.QueryRow(ctx, "SELECT count(*), count(*) FILTER (WHERE seq <= $4), "+sumSizes+" FILTER (WHERE seq <= $4), 0)::bigint FROM event WHERE merchant = $1 AND at >= $2 AND at < $3",
				m, from, bounds[i+1], c.last).Scan(&all, &n, &size); err != nil {
				return err
			}
			found, err = c.recountPiece(ctx, tx, from, bounds[i+1])
			return err
		}); err != nil || removed {
			return err
		}
		for _, f := range found {
			v.Found(f)
		}
		c.n, c.bytes = c.n+n, c.bytes+size
		counts.Events += uint64(all)
		read()
	}
	var links, marks, counters int64
	if removed, err := r.readUnlessRemoved(ctx, m, func(tx pgx.Tx) (err error) {
		if err := tx.QueryRow(ctx, countRest, m).Scan(&links, &marks, &counters); err != nil {
			return err
		}
		found, err = c.totals(ctx, tx)
		return err
	}); err != nil || removed {
		return err
	}
	for _, f := range found {
		v.Found(f)
	}
	counts.Links += uint64(links)
	counts.Marks += uint64(marks)
	counts.Entries += uint64(counters)
	return nil
}

// readUnlessRemoved is read, but calls nothing when the merchant was deleted.
func (r *Reader) readUnlessRemoved(ctx context.Context, m uuid.UUID, read func(tx pgx.Tx) error) (removed bool, err error) {
	err = r.db.Read(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, "SELECT EXISTS (SELECT FROM record WHERE kind = 'removals' AND id = $1 AND body IS NOT NULL)", m.String()).Scan(&removed); err != nil || removed {
			return err
		}
		return read(tx)
	})
	return removed, err
}

// pieceBounds splits all time into ranges with about this many events of a merchant. It returns their bounds, which are full
// hours.
func pieceBounds(ctx context.Context, tx pgx.Tx, m uuid.UUID, events int64) (bounds []int64, err error) {
	bounds = []int64{control.Earliest}
	var size, hour, n int64
	if err := conn.Query(ctx, tx, []any{&hour, &n}, func() error {
		if size > 0 && size+n > events {
			bounds, size = append(bounds, hour*count.BucketSize[count.ByHour]), 0
		}
		size += n
		return nil
	}, "SELECT bucket, sum(n)::bigint FROM counter WHERE merchant = $1 AND level = 1 AND name = '' GROUP BY bucket ORDER BY bucket", m); err != nil {
		return nil, err
	}
	return append(bounds, control.Latest), nil
}

func (c *merchantCheck) newFinding(part store.Part, problem string, args ...any) store.Finding {
	return store.Finding{Part: part, Where: "merchant " + c.merchant.String(), Problem: fmt.Sprintf(problem, args...),
		Merchants: []store.MerchantID{store.MerchantID(c.merchant.String())}}
}

// recountPiece compares the events of a piece with its counters.
func (c *merchantCheck) recountPiece(ctx context.Context, tx pgx.Tx, from, to int64) ([]store.Finding, error) {
	var different, wrong, first, end int64
	if err := tx.QueryRow(ctx, recount, c.merchant, from, to).Scan(&different, &wrong, &first, &end); err != nil || different == 0 {
		return nil, err
	}
	f := c.newFinding(store.PartIndex, "has %d counters from %s to %s that differ from its events", different, store.FormatTime(TimeAt(first)), store.FormatTime(TimeAt(end)))
	f.Events, f.From, f.To = uint64(wrong), TimeAt(first), TimeAt(end)
	return []store.Finding{f}, nil
}

// totals makes the comparisons that do not belong to one piece.
func (c *merchantCheck) totals(ctx context.Context, tx pgx.Tx) (found []store.Finding, err error) {
	var usedN, usedBytes, openN, openBytes, life, newN, newBytes, different int64
	if err := tx.QueryRow(ctx, `SELECT coalesce((SELECT events FROM usage WHERE merchant = $1), 0), coalesce((SELECT bytes FROM usage WHERE merchant = $1), 0),
			coalesce((SELECT sum(n) FROM tally WHERE `+count.IsPending+`), 0)::bigint, coalesce((SELECT sum(bytes) FROM tally WHERE `+count.IsPending+`), 0)::bigint,
			coalesce((SELECT sum(n) FROM counter WHERE merchant = $1 AND level = 3 AND name = ''), 0)::bigint,
			count(*), `+sumSizes+`, 0)::bigint FROM event WHERE merchant = $1 AND seq > $2`, c.merchant, c.last).
		Scan(&usedN, &usedBytes, &openN, &openBytes, &life, &newN, &newBytes); err != nil {
		return nil, err
	}
	if usedN != life {
		found = append(found, c.newFinding(store.PartIndex, "has %d events in its counters, but %d in its usage", life, usedN))
	}
	if removedNone := usedN+openN-newN == c.n; removedNone && usedBytes+openBytes != c.bytes+newBytes {
		found = append(found, c.newFinding(store.PartIndex, "has events of %d bytes, but %d bytes in its usage", c.bytes+newBytes, usedBytes+openBytes))
	}
	if err := tx.QueryRow(ctx, compareLevels, c.merchant).Scan(&different); err != nil {
		return nil, err
	}
	if different > 0 {
		found = append(found, c.newFinding(store.PartIndex, "has %d counters of days and of all time that differ from those of the hours", different))
	}
	var tag string
	var n int64
	return found, conn.Query(ctx, tx, []any{&tag, &n}, func() error {
		f := c.newFinding(store.PartTags, "has events of the tag %s, which it does not have", tag)
		f.Events = uint64(n)
		found = append(found, f)
		return nil
	}, unknownTags, c.merchant)
}
