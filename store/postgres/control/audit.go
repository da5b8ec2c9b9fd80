package control

import (
	"context"
	"encoding/json"
	"math"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/conn"
)

// QueueEntries adds entries to the audit log.
func QueueEntries(b *pgx.Batch, entries []store.AuditEntry) error {
	for _, e := range entries {
		var partner *uuid.UUID
		if key, ok := conn.KeyOf(e.Partner); ok {
			partner = &key
		}
		text, err := json.Marshal(e)
		if err != nil {
			return err
		}
		b.Queue("INSERT INTO audit (id, at, partner, record) VALUES ($1, $2, $3, $4)", int64(e.ID), e.At, partner, text)
	}
	return nil
}

// byOperator selects the entries that count as an operator's: see store.AuditEntry.Holder.
const byOperator = `(partner IS NULL OR record->'actor'->>'kind' = '` + string(store.ByOperator) + `')`

// dropAudit drops the entries that are too many. Nodes may do it at the same time. Counting them takes a second or two of a
// full log, so it waits until a hundredth of the log is new. Then it also finds out whose changes are refused.
func (c *Control) dropAudit(ctx context.Context) error {
	limits := c.auditLimits
	// There may be far fewer than the difference of their numbers, but never more. That is found at once, and says enough
	// while the log has not been full.
	var last, span int
	if err := c.db.Pool.QueryRow(ctx, "SELECT coalesce(max(id), 0), coalesce(max(id) - min(id), 0) FROM audit").Scan(&last, &span); err != nil ||
		len(*c.auditFull.Load()) == 0 && (span < min(limits.Partners, limits.Operators) || last-c.auditDropped < limits.Partners/100) {
		return err
	}
	type holder struct {
		partner uuid.UUID
		n       int
	}
	var before, young time.Time
	var held []holder
	if err := c.db.Read(ctx, func(tx pgx.Tx) error {
		now, err := c.Time(ctx, tx)
		if err != nil {
			return err
		}
		before, young = now.Add(-limits.OperatorAge), now.Add(-limits.PartnerAge)
		held, err = conn.CollectRows(ctx, tx, func(h *holder) []any { return []any{&h.partner, &h.n} },
			"SELECT partner, count(*) FROM audit WHERE NOT "+byOperator+" GROUP BY partner")
		return err
	}); err != nil {
		return err
	}
	quota := limits.Quota(conn.Map(held, func(h *holder) int { return h.n }))
	full := map[store.PartnerID]bool{}
	for _, h := range held {
		if h.n <= quota {
			continue
		}
		dropped, err := c.db.Pool.Exec(ctx, "DELETE FROM audit WHERE partner = $1 AND at <= $3 AND NOT "+byOperator+
			" AND id <= (SELECT id FROM audit WHERE partner = $1 AND NOT "+byOperator+" ORDER BY id DESC OFFSET $2 LIMIT 1)", h.partner, quota, young)
		if err != nil {
			return err
		}
		if h.n-int(dropped.RowsAffected()) > quota {
			full[store.PartnerID(h.partner.String())] = true
		}
	}
	c.auditFull.Store(&full)
	_, err := c.db.Pool.Exec(ctx, "DELETE FROM audit WHERE "+byOperator+" AND at < $1 AND id <= (SELECT id FROM audit WHERE "+byOperator+
		" ORDER BY id DESC OFFSET $2 LIMIT 1)", before, limits.Operators)
	if err == nil {
		c.auditDropped = last
	}
	return err
}

// Audit implements rules.Driver.
func (d Driver) Audit(ctx context.Context, q store.AuditQuery) (entries []store.AuditEntry, err error) {
	if err := ctx.Err(); err != nil || q.Limit <= 0 {
		return nil, err
	}
	key, ok := conn.KeyOf(q.Partner)
	if q.Partner != "" && !ok {
		return nil, nil
	}
	before := int64(math.MaxInt64)
	if q.Before != 0 {
		before = int64(q.Before)
	}
	sql, args := "SELECT record FROM audit WHERE at >= $1 AND id < $3", []any{q.Since, q.Limit, before}
	if q.Partner != "" {
		sql += " AND partner = $4"
		args = append(args, key)
	}
	return conn.SelectRows(ctx, d.db, func(e *store.AuditEntry) []any { return []any{e} }, sql+" ORDER BY id DESC LIMIT $2", args...)
}

// Tidy stores when keys and sessions were last used on this node, and deletes rows that are too old. It uses the server's
// clock: the ages exceed any difference between clocks.
func (c *Control) Tidy(ctx context.Context) error {
	if err := c.Data.Tidy(ctx); err != nil {
		return err
	}
	for _, sql := range []string{
		// Documents whose merchant was deleted. Those of no merchant have the nil UUID.
		"DELETE FROM document WHERE merchant <> '" + uuid.Nil.String() + "' AND merchant NOT IN (SELECT m.id FROM " + conn.Merchants + " m)",
		"DELETE FROM change WHERE at < now() - interval '" + keepChanges + "' AND seq < (SELECT max(seq) FROM change)",
		// A node that does not know of the deletion has missed changes.
		"DELETE FROM record WHERE body IS NULL AND version < (SELECT min(seq) FROM change)",
		// Messages and leases of nodes that have died.
		"DELETE FROM message WHERE at < now() - interval '1 minute'",
		"DELETE FROM lease WHERE expires < now() - interval '1 day'",
	} {
		if _, err := c.db.Pool.Exec(ctx, sql); err != nil {
			return err
		}
	}
	return c.dropAudit(ctx)
}
