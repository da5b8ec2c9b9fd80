// Package schema has the tables of the database, as migrations, and distributes them with the extension Citus on request.
package schema

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"mtagd/store/postgres/conn"
)

//go:embed migrations/*.sql
var Migrations embed.FS

// Version is the version of the schema that this program needs: the number of the last migration.
//
// A migration only adds to the schema, so that nodes of the version before go on until they are started again. They stop
// being ready as soon as a newer node publishes a change of an unknown kind. A removal takes two versions: one that no
// longer needs the old part of the schema, and one that removes it.
const Version = 17

// Prepare brings the schema up to date. In a distributed database it also distributes new tables. It looks for such tables
// at each start, because a kill may have come between the two steps. Several nodes may call it at once. It returns an error
// for a newer schema.
func Prepare(ctx context.Context, pool *pgxpool.Pool) error {
	if err := updateSchema(ctx, pool); err != nil {
		return err
	}
	var distributed bool
	if err := conn.InTime(ctx, func(ctx context.Context) (err error) {
		distributed, err = conn.IsDistributed(ctx, pool)
		return err
	}); err != nil || !distributed {
		return err
	}
	_, err := distributeTables(ctx, pool)
	return err
}

// updateSchema applies the migrations that are missing.
func updateSchema(ctx context.Context, pool *pgxpool.Pool) error {
	version, err := VersionOf(ctx, pool)
	if err != nil || version == Version {
		return err
	}
	if version < Version {
		if err := applyMigrations(ctx, pool); err != nil {
			return fmt.Errorf("migrate the schema: %w", err)
		}
		if version, err = VersionOf(ctx, pool); err != nil {
			return err
		}
	}
	if version != Version {
		return fmt.Errorf("the database has schema version %d, but this version of mtagd needs %d: install the version of mtagd that the other nodes run",
			version, Version)
	}
	return nil
}

// VersionOf returns the version of the schema; 0 when there is none yet.
func VersionOf(ctx context.Context, pool *pgxpool.Pool) (version int, err error) {
	err = conn.InTime(ctx, func(ctx context.Context) error {
		return pool.QueryRow(ctx, "SELECT coalesce(max(version_id), 0) FROM goose_db_version WHERE is_applied").Scan(&version)
	})
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == undefinedTable {
		return 0, nil
	}
	return version, err
}

// undefinedTable is the SQLSTATE of a statement that names a table that does not exist.
const undefinedTable = "42P01"

// applyMigrations applies what is missing. A lock in a table keeps other nodes waiting: a session lock breaks behind a pooler.
func applyMigrations(ctx context.Context, pool *pgxpool.Pool) (err error) {
	files, err := fs.Sub(Migrations, "migrations")
	if err != nil {
		return err
	}
	locker, err := lock.NewPostgresTableLocker(lock.WithTableLockTimeout(time.Second, 300))
	if err != nil {
		return err
	}
	db := stdlib.OpenDBFromPool(pool)
	defer func() { err = errors.Join(err, db.Close()) }()
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithLocker(locker), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	_, err = p.Up(ctx)
	return err
}
