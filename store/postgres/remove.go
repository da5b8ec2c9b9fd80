package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
)

// removePortion is how many events one transaction removes: flushes of all nodes wait for it.
const removePortion = 500

// removeEvents removes events of a merchant, and what the counters have of them. Events that are gone already are passed over.
func (e *engine) removeEvents(ctx context.Context, merchant uuid.UUID, events []receipt) error {
	for len(events) > 0 {
		n := min(len(events), removePortion)
		if err := e.removeSome(ctx, merchant, events[:n]); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

const (
	deleteEvents = `DELETE FROM event WHERE merchant = $1 AND (seq, idx) IN (SELECT * FROM unnest($2::bigint[], $3::smallint[]))
		RETURNING at, bot, tag, name, length(muid), length(raw)`

	deleteEmptyCounters = `DELETE FROM counter WHERE merchant = $1 AND n = 0 AND (level, name, bucket, tag, bot) IN
		(SELECT * FROM unnest($2::smallint[], $3::text[], $4::bigint[], $5::text[], $6::boolean[]))`
)

func (e *engine) removeSome(ctx context.Context, merchant uuid.UUID, events []receipt) error {
	seqs, idxs := make([]int64, len(events)), make([]int16, len(events))
	for i, r := range events {
		seqs[i], idxs[i] = r.seq, r.idx
	}
	return e.transact(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, takeReceiptLock, lockReceipt); err != nil {
			return err
		}
		counts, used := counts{}, map[uuid.UUID]store.Usage{}
		if err := query(ctx, tx, func(rows pgx.Rows) error {
			var at int64
			var bot bool
			var tag, name string
			var muid, raw int
			if err := rows.Scan(&at, &bot, &tag, &name, &muid, &raw); err != nil {
				return err
			}
			counts.add(merchant, at, tag, name, bot, -1)
			u := used[merchant]
			used[merchant] = store.Usage{Events: u.Events + 1, Bytes: u.Bytes + sizeOf(raw, muid, name, tag)}
			return nil
		}, deleteEvents, merchant, seqs, idxs); err != nil || len(counts) == 0 {
			return err
		}
		columns := counts.columns()
		if _, err := tx.Exec(ctx, addCounters, columns...); err != nil {
			return err
		}
		columns[0] = merchant
		if _, err := tx.Exec(ctx, deleteEmptyCounters, columns[:len(columns)-1]...); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, addUsage, usageColumns(used, -1)...)
		return err
	})
}

// The statements that remove a part of what is left of a deleted merchant.
var deleteOfMerchant = []string{
	`DELETE FROM event WHERE merchant = $1 AND (seq, idx) IN (SELECT seq, idx FROM event WHERE merchant = $1 LIMIT $2)`,
	`DELETE FROM counter WHERE merchant = $1 AND (level, name, bucket, tag, bot) IN (SELECT level, name, bucket, tag, bot FROM counter WHERE merchant = $1 LIMIT $2)`,
	`DELETE FROM link WHERE merchant = $1 AND key IN (SELECT key FROM link WHERE merchant = $1 LIMIT $2)`,
	`DELETE FROM dedup WHERE merchant = $1 AND key IN (SELECT key FROM dedup WHERE merchant = $1 LIMIT $2)`,
	`DELETE FROM suppressed WHERE merchant = $1 AND key IN (SELECT key FROM suppressed WHERE merchant = $1 LIMIT $2)`,
	`DELETE FROM usage WHERE merchant = $1 AND $2 > 0`,
}

// dropMerchant removes everything of a deleted merchant. No flush writes to it any more, so it takes no lock of theirs.
func (e *engine) dropMerchant(ctx context.Context, merchant uuid.UUID) error {
	const portion = 5000
	for _, sql := range deleteOfMerchant {
		for {
			done, err := e.pool.Exec(ctx, sql, merchant, portion)
			if err != nil {
				return err
			}
			if done.RowsAffected() < portion {
				break
			}
		}
	}
	return nil
}
