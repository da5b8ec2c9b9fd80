package conn

import (
	"bytes"
	"context"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
)

// Locks of transactions, by number.
const (
	LockControl    = 0x6d746701
	LockReceipt    = 0x6d746702
	LockRemoval    = 0x6d746703
	LockDistribute = 0x6d746704
	LockRollup     = 0x6d746705
	LockSchema     = 0x6d746706
	LockRefusals   = 0x6d746707 // flushes share it from before they ask who is refused until they are committed
)

// Querier is a transaction, or the pool when one statement is enough.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Query calls use after each row of a statement was read into variables.
func Query(ctx context.Context, tx Querier, into []any, use func() error, sql string, args ...any) error {
	rows, err := tx.Query(ctx, sql, args...)
	if err == nil {
		_, err = pgx.ForEachRow(rows, into, use)
	}
	return err
}

// Queue adds a statement to a batch. It calls use as Query does.
func Queue(b *pgx.Batch, into []any, use func() error, sql string, args ...any) {
	b.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, into, use)
		return err
	})
}

// CollectRows returns the rows of a statement. columns returns the destinations for the columns of a row.
func CollectRows[T any](ctx context.Context, tx Querier, columns func(*T) []any, sql string, args ...any) (all []T, err error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var one T
		if err := rows.Scan(columns(&one)...); err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, rows.Err()
}

// Column returns the rows of a statement with one column.
func Column[T any](ctx context.Context, tx Querier, sql string, args ...any) ([]T, error) {
	return CollectRows(ctx, tx, func(v *T) []any { return []any{v} }, sql, args...)
}

// SelectRows is CollectRows in a transaction that reads.
func SelectRows[T any](ctx context.Context, d *DB, columns func(*T) []any, sql string, args ...any) (all []T, err error) {
	err = d.Read(ctx, func(tx pgx.Tx) (err error) {
		all, err = CollectRows(ctx, tx, columns, sql, args...)
		return err
	})
	return all, err
}

// Map applies of to each element. The result is a parameter of a statement.
func Map[T, V any](all []T, of func(*T) V) []V {
	values := make([]V, len(all))
	for i := range all {
		values[i] = of(&all[i])
	}
	return values
}

// KeyOf returns a partner's or merchant's id in the database's form; false if the id is malformed, so nothing can have it.
func KeyOf[ID ~string](id ID) (uuid.UUID, bool) {
	key, err := uuid.Parse(string(id))
	return key, err == nil && key.String() == string(id)
}

// IsStorable reports whether the database can store a text. If it cannot, nothing has that id or name.
func IsStorable[T ~string](text T) bool {
	return utf8.ValidString(string(text)) && !strings.ContainsRune(string(text), 0)
}

// Merchants is a table expression: the ids of all existing merchants.
const Merchants = `(SELECT id::uuid AS id FROM record WHERE kind = 'merchants' AND body IS NOT NULL)`

// CompareUUIDs orders merchants as the server does.
func CompareUUIDs(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }

// Hashes returns keys as a parameter of a statement.
func Hashes(keys []store.IdentityKey) [][]byte {
	return Map(keys, func(k *store.IdentityKey) []byte { return k[:] })
}
