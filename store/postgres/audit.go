package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
)

// audit adds entries to the audit log, in the transaction of the change. It fails when anything of the change has failed.
func (c *change) audit(entries ...store.AuditEntry) error {
	for _, entry := range entries {
		if c.failed == nil && c.audited == 0 {
			c.failed = c.tx.QueryRow(c.ctx, "SELECT coalesce(max(id), 0) FROM audit").Scan(&c.audited)
		}
		c.audited++
		entry = entry.Complete(c.ctx, c.audited, c.now)
		var partner *uuid.UUID
		if key, ok := keyOf(entry.Partner); ok {
			partner = &key
		}
		c.exec("INSERT INTO audit (id, at, partner, record) VALUES ($1, $2, $3, $4)", int64(entry.ID), entry.At, partner, c.encode(entry))
	}
	return c.failed
}

// Audit implements store.Control.
func (e *engine) Audit(ctx context.Context, q store.AuditQuery) (entries []store.AuditEntry, err error) {
	if err := ctx.Err(); err != nil || q.Limit <= 0 {
		return nil, err
	}
	key, ok := keyOf(q.Partner)
	if q.Partner != "" && !ok {
		return nil, nil
	}
	sql, args := "SELECT record FROM audit WHERE at >= $1", []any{q.Since, q.Limit}
	if q.Before != 0 {
		sql += " AND id < $3"
		args = append(args, int64(q.Before))
	} else {
		sql += " AND $3::int8 IS NULL"
		args = append(args, nil)
	}
	if q.Partner != "" {
		sql += " AND partner = $4"
		args = append(args, key)
	}
	err = e.read(ctx, func(tx pgx.Tx) (err error) {
		entries, err = list[store.AuditEntry](ctx, tx, sql+" ORDER BY id DESC LIMIT $2", args...)
		return err
	})
	return entries, err
}
