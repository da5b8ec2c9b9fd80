package conn

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"

	"mtagd/store"
)

// CitusInstalled is an SQL expression: whether the database has the extension. The tables need not be distributed.
const CitusInstalled = "to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL"

// IsDistributed reports whether Citus distributes any of the tables.
func IsDistributed(ctx context.Context, pool *pgxpool.Pool) (distributed bool, err error) {
	if installed, err := HasCitus(ctx, pool); err != nil || !installed {
		return false, err
	}
	err = pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = to_regclass('event'))").Scan(&distributed)
	return distributed, err
}

// HasCitus reports what CitusInstalled says.
func HasCitus(ctx context.Context, pool *pgxpool.Pool) (installed bool, err error) {
	err = pool.QueryRow(ctx, "SELECT "+CitusInstalled).Scan(&installed)
	return installed, err
}

// FinishOnWorkers commits transactions that the coordinator of a distributed database has committed, but a worker has only
// prepared, because one of the two failed in between. Citus does the same in the background, once a minute.
func (d *DB) FinishOnWorkers(ctx context.Context) error {
	distributed, err := IsDistributed(ctx, d.Pool)
	if err != nil || !distributed {
		return err
	}
	return d.Retry(ctx, func() error {
		return d.Pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
			if _, err := conn.Exec(ctx, "SELECT recover_prepared_transactions()"); err != nil {
				return err
			}
			return CheckReplicated(conn.Conn().PgConn())
		})
	})
}

// AwaitCommits waits until the workers of a distributed database have committed the flushes that are visible. They commit
// after the coordinator, while the flush still holds LockReceipt.
func (d *DB) AwaitCommits(ctx context.Context) error {
	return d.InTurn(ctx, string(store.PartnerOf(ctx)), func() error {
		return d.Attempt(ctx, func() error {
			_, err := d.Pool.Exec(ctx, "SELECT pg_advisory_xact_lock_shared($1)", LockReceipt)
			return err
		})
	})
}
