package read

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/control"
	"mtagd/store/rules"
)

// Verify implements store.Engine. It decodes all control data. It counts all events again, one merchant after the other, and
// compares them with the counters (verifyevents.go). It reads every row of events, with large bodies, of counters, links and
// remembered event_ids. So the server finds pages that cannot be read, and wrong checksums if it was made with them. Verify
// does not read every entry of the indexes: PostgreSQL's pg_amcheck does that.
func (r *Reader) Verify(ctx context.Context, v store.Verification) (counts store.Verified, err error) {
	if counts.Records, err = r.verifyControl(ctx, v); err != nil {
		return counts, err
	}
	type owner struct {
		merchant uuid.UUID
		events   uint64
	}
	owners, err := conn.SelectRows(ctx, r.db, func(o *owner) []any { return []any{&o.merchant, &o.events} },
		"SELECT merchant, greatest(max(events), 0) FROM (SELECT merchant, events FROM usage UNION ALL SELECT m.id, 0 FROM "+conn.Merchants+" m) AS x GROUP BY merchant ORDER BY merchant")
	if err != nil {
		return counts, err
	}
	done, total := uint64(0), uint64(0)
	for _, o := range owners {
		total += o.events
	}
	for _, o := range owners {
		before := counts.Events
		if err := r.verifyMerchant(ctx, o.merchant, v, &counts, func() {
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

// verifyControl decodes all records and the audit log, and returns how many there are.
func (r *Reader) verifyControl(ctx context.Context, v store.Verification) (records uint64, err error) {
	var all []control.Record
	if err := r.db.Read(ctx, func(tx pgx.Tx) (err error) {
		all, err = control.ReadRecords(ctx, tx, "body IS NOT NULL")
		return err
	}); err != nil {
		return 0, err
	}
	finding := func(where string, err error) {
		v.Found(store.Finding{Part: store.PartControl, Where: where, Problem: "cannot be read: " + err.Error()})
	}
	for _, r := range all {
		if err := rules.Check(r.Record); err != nil {
			finding(r.Kind+" "+r.Key, err)
		}
	}
	v.Read(store.PartControl, 1, 2)
	var found map[int64]error
	entries := uint64(0)
	if err := r.db.Read(ctx, func(tx pgx.Tx) error { // row by row: there may be millions of entries
		found, entries = map[int64]error{}, 0
		var id int64
		var text []byte
		return conn.Query(ctx, tx, []any{&id, &text}, func() error {
			entries++
			if err := json.Unmarshal(text, new(store.AuditEntry)); err != nil {
				found[id] = err
			}
			return nil
		}, "SELECT id, record FROM audit")
	}); err != nil {
		return 0, err
	}
	for id, err := range found {
		finding(fmt.Sprintf("audit %d", id), err)
	}
	v.Read(store.PartControl, 2, 2)
	return uint64(len(all)) + entries, nil
}
