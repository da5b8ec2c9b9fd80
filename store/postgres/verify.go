package postgres

import (
	"context"
	"encoding/json"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
)

// Verify implements store.Engine. It decodes all control data. It counts all events again, one merchant after the other, and compares
// them with the counters (verifyevents.go). It reads every row of events, with large bodies, of counters, links and remembered event_ids.
// So the server finds pages that cannot be read, and wrong checksums if it was made with them. Verify does not read every entry of the
// indexes: PostgreSQL's pg_amcheck does that.
func (e *engine) Verify(ctx context.Context, v store.Verification) (counts store.Verified, err error) {
	if counts.Records, err = e.verifyControl(ctx, v); err != nil {
		return counts, err
	}
	type owner struct {
		merchant uuid.UUID
		events   uint64
	}
	var owners []owner
	total := uint64(0)
	if err := e.read(ctx, func(tx pgx.Tx) error {
		owners, total = nil, 0
		return query(ctx, tx, func(rows pgx.Rows) error {
			var o owner
			err := rows.Scan(&o.merchant, &o.events)
			owners, total = append(owners, o), total+o.events
			return err
		}, "SELECT merchant, greatest(max(events), 0) FROM (SELECT merchant, events FROM usage UNION ALL SELECT id, 0 FROM merchant) AS x GROUP BY merchant ORDER BY merchant")
	}); err != nil {
		return counts, err
	}
	done := uint64(0)
	for _, o := range owners {
		before := counts.Events
		if err := e.verifyMerchant(ctx, o.merchant, v, &counts, func() {
			now := done + min(counts.Events-before, o.events)
			v.Read(store.PartEvents, now, total)
		}); err != nil {
			return counts, err
		}
		done += o.events
		v.Read(store.PartEvents, done, total)
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
