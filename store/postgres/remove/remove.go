package remove

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/count"
)

// removePortion is how many events one transaction removes: rollups wait for it.
const removePortion = 2000

// RemoveEvents removes events of a merchant that the caller has read, and subtracts them from the counters. It skips events
// that no longer exist. Their deltas are rolled up first, so that the counters have all of these events and no counter
// becomes negative.
func (r *Remover) RemoveEvents(ctx context.Context, merchant uuid.UUID, events []store.Position) error {
	if len(events) == 0 {
		return nil
	}
	if err := r.counts.RollUp(ctx, []uuid.UUID{merchant}); err != nil {
		return err
	}
	for some := range slices.Chunk(events, removePortion) {
		if err := r.removeSome(ctx, merchant, some); err != nil {
			return err
		}
	}
	return nil
}

// beginRemoval waits for rollups, and sets what count.BeginRollUp does. A plan for any merchant would be bad for one with
// many counters.
const beginRemoval = `SELECT set_config('jit', 'off', true), set_config('enable_seqscan', 'off', true),
		set_config('plan_cache_mode', 'force_custom_plan', true), pg_advisory_xact_lock($1)`

const deleteEvents = `DELETE FROM event WHERE merchant = $1 AND (seq, idx) IN (SELECT * FROM unnest($2::bigint[], $3::smallint[]))
		RETURNING at, bot, tag, name, length(muid), length(raw)`

func (r *Remover) removeSome(ctx context.Context, merchant uuid.UUID, events []store.Position) error {
	seqs, idxs := make([]int64, len(events)), make([]int16, len(events))
	for i, r := range events {
		seqs[i], idxs[i] = int64(r.Seq), int16(r.Index)
	}
	return r.db.Transact(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, beginRemoval, conn.LockRollup); err != nil {
			return err
		}
		removed := count.Deltas{}
		var at int64
		var bot bool
		var tag, name string
		var muid, raw int
		if err := conn.Query(ctx, tx, []any{&at, &bot, &tag, &name, &muid, &raw}, func() error {
			removed.Add(merchant, at, tag, name, bot, count.SizeOf(raw, muid, name, tag), -1)
			return nil
		}, deleteEvents, merchant, seqs, idxs); err != nil || len(removed) == 0 {
			return err
		}
		return removed.Subtract(ctx, tx, merchant)
	})
}

// The statements that remove a part of what is left of a deleted merchant.
var deleteOfMerchant = []string{
	`DELETE FROM event WHERE merchant = $1 AND (seq, idx) IN (SELECT seq, idx FROM event WHERE merchant = $1 LIMIT $2)`,
	`DELETE FROM counter WHERE merchant = $1 AND (level, name, bucket, tag, bot) IN (SELECT level, name, bucket, tag, bot FROM counter WHERE merchant = $1 LIMIT $2)`,
	`DELETE FROM link WHERE merchant = $1 AND key IN (SELECT key FROM link WHERE merchant = $1 LIMIT $2)`,
	`DELETE FROM held_link WHERE merchant = $1 AND (key, muid) IN (SELECT key, muid FROM held_link WHERE merchant = $1 LIMIT $2)`,
	`DELETE FROM linked_muid WHERE merchant = $1 AND hash IN (SELECT hash FROM linked_muid WHERE merchant = $1 LIMIT $2)`,
	`DELETE FROM dedup WHERE merchant = $1 AND key IN (SELECT key FROM dedup WHERE merchant = $1 LIMIT $2)`,
	`DELETE FROM usage WHERE merchant = $1 AND $2 > 0`,
}

// dropMerchant removes everything of a deleted merchant. No flush writes for the merchant any more, so no lock is needed.
// The deltas are deleted first, so that no rollup adds to the counters afterwards.
func (r *Remover) dropMerchant(ctx context.Context, merchant uuid.UUID) error {
	const portion = 5000
	if err := r.db.Transact(ctx, func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue("SELECT pg_advisory_xact_lock($1)", conn.LockRollup)
		b.Queue("DELETE FROM tally WHERE merchant = $1", merchant)
		return tx.SendBatch(ctx, b).Close()
	}); err != nil {
		return err
	}
	for _, sql := range deleteOfMerchant {
		for {
			done, err := r.db.Pool.Exec(ctx, sql, merchant, portion)
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
