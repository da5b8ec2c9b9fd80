package count

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

// DeltaKey says which events a row of the table tally counts. Each flush inserts its own rows.
type DeltaKey struct {
	merchant uuid.UUID
	Minute   int64
	Name     string
	Tag      string
	Bot      bool
}

// Amount is a number of events, and their size in bytes (SizeOf).
type Amount struct{ N, Bytes int64 }

// Deltas are changes to counters: positive for recorded events, negative for removed ones.
type Deltas map[DeltaKey]Amount

// Add counts an event: 1 for a recorded one, -1 for a removed one.
func (t Deltas) Add(merchant uuid.UUID, at int64, tag, name string, bot bool, size uint64, n int64) {
	k := DeltaKey{merchant, BucketOf(ByMinute, at), name, tag, bot}
	a := t[k]
	t[k] = Amount{a.N + n, a.Bytes + n*int64(min(size, math.MaxInt64))}
}

// deltas are rows of deltas in a statement whose first parameters are those of Deltas.Columns.
const deltas = `unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::boolean[], $6::bigint[], $7::bigint[])
	AS w(merchant, minute, name, tag, bot, n, bytes)`

const WriteDeltas = `INSERT INTO tally (merchant, seq, minute, name, tag, bot, n, bytes)
	SELECT w.merchant, currval('receipt'), w.minute, w.name, w.tag, w.bot, w.n, w.bytes FROM ` + deltas

// Columns returns the parameters of WriteDeltas.
func (t Deltas) Columns() []any {
	keys := slices.SortedFunc(maps.Keys(t), func(a, b DeltaKey) int {
		return cmp.Or(conn.CompareUUIDs(a.merchant, b.merchant), cmp.Compare(a.Minute, b.Minute))
	})
	return []any{
		conn.Map(keys, func(k *DeltaKey) uuid.UUID { return k.merchant }),
		conn.Map(keys, func(k *DeltaKey) int64 { return k.Minute }),
		conn.Map(keys, func(k *DeltaKey) string { return k.Name }),
		conn.Map(keys, func(k *DeltaKey) string { return k.Tag }),
		conn.Map(keys, func(k *DeltaKey) bool { return k.Bot }),
		conn.Map(keys, func(k *DeltaKey) int64 { return t[*k].N }),
		conn.Map(keys, func(k *DeltaKey) int64 { return t[*k].Bytes }),
	}
}

// AddTo adds deltas to the counters and to usage. folded has the new values of usage.folded; other merchants keep theirs.
func (t Deltas) AddTo(ctx context.Context, tx pgx.Tx, folded map[uuid.UUID]int64) error {
	if _, err := tx.Exec(ctx, addCounters, t.Columns()...); err != nil {
		return err
	}
	return t.AddUsageTo(ctx, tx, folded)
}

// Subtract is AddTo for removed events of one merchant, whose deltas must all be rolled up. It deletes counters that become
// 0.
func (t Deltas) Subtract(ctx context.Context, tx pgx.Tx, merchant uuid.UUID) error {
	if err := t.AddTo(ctx, tx, nil); err != nil {
		return err
	}
	columns := t.Columns()
	_, err := tx.Exec(ctx, DeleteEmptyCounters, append([]any{merchant}, columns[1:5]...)...)
	return err
}

// AddUsageTo adds deltas to usage alone.
func (t Deltas) AddUsageTo(ctx context.Context, tx pgx.Tx, folded map[uuid.UUID]int64) error {
	merchants := slices.Collect(maps.Keys(folded))
	_, err := tx.Exec(ctx, addUsage, append(t.Columns(), merchants, conn.Map(merchants, func(m *uuid.UUID) int64 { return folded[*m] }))...)
	return err
}

// Rollups and removals lock rows in one order, so that they never deadlock.
var (
	// DeleteEmptyCounters looks each counter up. Else a plan could compare all that are empty with all of these.
	DeleteEmptyCounters = `DELETE FROM counter WHERE merchant = $1 AND ctid = ANY(ARRAY(SELECT c.ctid
		FROM unnest($2::bigint[], $3::text[], $4::text[], $5::boolean[]) AS w(minute, name, tag, bot), ` + ForEachCounter + `,
		LATERAL (SELECT ctid FROM counter WHERE merchant = $1 AND level = l.level AND name = v.name AND bucket = ` + BucketOfMinute + `
			AND tag = w.tag AND bot = w.bot AND n = 0 LIMIT 1) AS c))`

	addCounters = `INSERT INTO counter (merchant, level, name, bucket, tag, bot, n)
		SELECT w.merchant, l.level, v.name, ` + BucketOfMinute + `, w.tag, w.bot, sum(w.n)::bigint FROM ` + deltas + `, ` + ForEachCounter + `
		GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
		ON CONFLICT (merchant, level, name, bucket, tag, bot) DO UPDATE SET n = counter.n + excluded.n`

	addUsage = `INSERT INTO usage (merchant, events, bytes, folded)
		SELECT w.merchant, sum(w.n)::bigint, sum(w.bytes)::bigint, coalesce(max(f.folded), 0)
		FROM ` + deltas + ` LEFT JOIN unnest($8::uuid[], $9::bigint[]) AS f(merchant, folded) USING (merchant) GROUP BY 1 ORDER BY 1
		ON CONFLICT (merchant) DO UPDATE SET events = usage.events + excluded.events, bytes = usage.bytes + excluded.bytes,
		folded = greatest(usage.folded, excluded.folded)`
)

// Pending is the pending deltas of one merchant: the rows of the table tally that are not in the counters yet. It is sorted
// by name.
type Pending []PendingCount

type PendingCount struct {
	DeltaKey // without the merchant
	N        int
}

const (
	// IsPending selects the rows of the merchant $1 that were not rolled up yet.
	IsPending = `merchant = $1 AND seq > coalesce((SELECT folded FROM usage WHERE merchant = $1), 0)`

	readPending = `SELECT minute, name, tag, bot, sum(n)::bigint FROM tally WHERE ` + IsPending + ` GROUP BY minute, name, tag, bot`
)

// ReadPending returns the pending deltas of a merchant.
func ReadPending(ctx context.Context, tx pgx.Tx, merchant uuid.UUID) (Pending, error) {
	all, err := conn.CollectRows(ctx, tx, func(p *PendingCount) []any { return []any{&p.Minute, &p.Name, &p.Tag, &p.Bot, &p.N} }, readPending, merchant)
	slices.SortFunc(all, func(a, b PendingCount) int { return cmp.Compare(a.Name, b.Name) })
	return all, err
}

// Of returns the deltas of one name; of all names when it is empty.
func (o Pending) Of(name string) Pending {
	if name == "" {
		return o
	}
	first, found := slices.BinarySearchFunc(o, name, func(t PendingCount, name string) int { return cmp.Compare(t.Name, name) })
	if !found {
		return nil
	}
	end := first
	for end < len(o) && o[end].Name == name {
		end++
	}
	return o[first:end]
}

// SizeOf returns the bytes that an event counts for in store.Usage.
func SizeOf(raw, muid int, name, tag string) uint64 {
	const timeSize = 8
	return uint64(raw + muid + len(name) + len(tag) + timeSize)
}
