package postgres

import (
	"cmp"
	"context"
	"maps"
	"math"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store/postgres/conn"
)

// tallyKey says which events a row of the table tally counts. Each flush has rows of its own.
type tallyKey struct {
	merchant uuid.UUID
	minute   int64
	name     string
	tag      string
	bot      bool
}

// amount is a number of events, and their size in bytes (sizeOf).
type amount struct{ n, bytes int64 }

// tallies count events that were recorded, or that were removed: then the amounts are negative.
//
// A flush inserts them into the table tally. That takes no row locks. If flushes updated the counters, they would wait for each
// other, and update the same rows hundreds of times a second. fold.go moves the rows into the counters. So the number of
// events is the sum of the counters and of the open tally, both read as of one moment.
type tallies map[tallyKey]amount

// add counts an event: 1 when it was recorded, -1 when it was removed.
func (t tallies) add(merchant uuid.UUID, at int64, tag, name string, bot bool, size uint64, n int64) {
	k := tallyKey{merchant, bucketOf(byMinute, at), name, tag, bot}
	a := t[k]
	t[k] = amount{a.n + n, a.bytes + n*int64(min(size, math.MaxInt64))}
}

const writeTally = `INSERT INTO tally (merchant, seq, minute, name, tag, bot, n, bytes)
	SELECT w.merchant, currval('receipt'), w.minute, w.name, w.tag, w.bot, w.n, w.bytes
	FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::boolean[], $6::bigint[], $7::bigint[])
	AS w(merchant, minute, name, tag, bot, n, bytes)`

// columns returns the parameters of writeTally.
func (t tallies) columns() []any {
	keys := slices.SortedFunc(maps.Keys(t), func(a, b tallyKey) int {
		return cmp.Or(conn.CompareUUIDs(a.merchant, b.merchant), cmp.Compare(a.minute, b.minute))
	})
	n := len(keys)
	merchants, minutes, names, tags := make([]uuid.UUID, n), make([]int64, n), make([]string, n), make([]string, n)
	bots, ns, sizes := make([]bool, n), make([]int64, n), make([]int64, n)
	for i, k := range keys {
		merchants[i], minutes[i], names[i], tags[i], bots[i], ns[i], sizes[i] = k.merchant, k.minute, k.name, k.tag, k.bot, t[k].n, t[k].bytes
	}
	return []any{merchants, minutes, names, tags, bots, ns, sizes}
}

// counts returns the additions to counters that tallies stand for.
func (t tallies) counts() counts {
	c := counts{}
	for k, a := range t {
		c.add(k, a.n)
	}
	return c
}

// addTo adds tallies to the counters and to usage. folded has the new usage.folded of merchants; it stays as it is for the others.
func (t tallies) addTo(ctx context.Context, tx pgx.Tx, folded map[uuid.UUID]int64) error {
	if _, err := tx.Exec(ctx, addCounters, t.counts().columns()...); err != nil {
		return err
	}
	return t.addUsageTo(ctx, tx, folded)
}

// subtract is addTo for the events of one merchant that are removed. The tally must have none of them. Counters that become 0 go.
func (t tallies) subtract(ctx context.Context, tx pgx.Tx, merchant uuid.UUID) error {
	if err := t.addTo(ctx, tx, nil); err != nil {
		return err
	}
	columns := t.counts().columns()
	columns[0] = merchant
	_, err := tx.Exec(ctx, deleteEmptyCounters, columns[:len(columns)-1]...)
	return err
}

// addUsageTo adds tallies to usage alone.
func (t tallies) addUsageTo(ctx context.Context, tx pgx.Tx, folded map[uuid.UUID]int64) error {
	used := map[uuid.UUID]amount{}
	for k, a := range t {
		u := used[k.merchant]
		used[k.merchant] = amount{u.n + a.n, u.bytes + a.bytes}
	}
	merchants := slices.SortedFunc(maps.Keys(used), conn.CompareUUIDs)
	events, sizes, upTo := make([]int64, len(merchants)), make([]int64, len(merchants)), make([]int64, len(merchants))
	for i, m := range merchants {
		events[i], sizes[i], upTo[i] = used[m].n, used[m].bytes, folded[m]
	}
	_, err := tx.Exec(ctx, addUsage, merchants, events, sizes, upTo)
	return err
}

const (
	deleteEmptyCounters = `DELETE FROM counter WHERE merchant = $1 AND n = 0 AND (level, name, bucket, tag, bot) IN
		(SELECT * FROM unnest($2::smallint[], $3::text[], $4::bigint[], $5::text[], $6::boolean[]))`

	addCounters = `INSERT INTO counter (merchant, level, name, bucket, tag, bot, n)
		SELECT * FROM unnest($1::uuid[], $2::smallint[], $3::text[], $4::bigint[], $5::text[], $6::boolean[], $7::bigint[])
		ON CONFLICT (merchant, level, name, bucket, tag, bot) DO UPDATE SET n = counter.n + excluded.n`

	addUsage = `INSERT INTO usage (merchant, events, bytes, folded) SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[])
		ON CONFLICT (merchant) DO UPDATE SET events = usage.events + excluded.events, bytes = usage.bytes + excluded.bytes,
		folded = greatest(usage.folded, excluded.folded)`
)

// openTally is the open tally of one merchant: the rows of the table tally that are not in the counters yet. It is sorted by name.
type openTally []tallied

type tallied struct {
	tallyKey // without the merchant
	n        int
}

const (
	// isOpen selects the rows of the merchant $1 that were not folded yet.
	isOpen = `merchant = $1 AND seq > coalesce((SELECT folded FROM usage WHERE merchant = $1), 0)`

	readTally = `SELECT minute, name, tag, bot, sum(n)::bigint FROM tally WHERE ` + isOpen + ` GROUP BY minute, name, tag, bot`
)

func readOpen(ctx context.Context, tx pgx.Tx, merchant uuid.UUID) (all openTally, err error) {
	err = conn.Query(ctx, tx, func(rows pgx.Rows) error {
		var t tallied
		err := rows.Scan(&t.minute, &t.name, &t.tag, &t.bot, &t.n)
		all = append(all, t)
		return err
	}, readTally, merchant)
	slices.SortFunc(all, func(a, b tallied) int { return cmp.Compare(a.name, b.name) })
	return all, err
}

// of returns what the tally has of one name; of all names when it is empty.
func (o openTally) of(name string) openTally {
	if name == "" {
		return o
	}
	first, found := slices.BinarySearchFunc(o, name, func(t tallied, name string) int { return cmp.Compare(t.name, name) })
	if !found {
		return nil
	}
	end := first
	for end < len(o) && o[end].name == name {
		end++
	}
	return o[first:end]
}

// sizeOf is what an event counts for in store.Usage.
func sizeOf(raw, muid int, name, tag string) uint64 {
	const timeSize = 8
	return uint64(raw + muid + len(name) + len(tag) + timeSize)
}
