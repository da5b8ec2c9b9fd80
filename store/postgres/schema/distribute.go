package schema

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mtagd/store/postgres/conn"
)

// Placement says where the rows of a table are, in a database that Citus distributes.
type Placement string

const (
	ByMerchant    Placement = "by merchant"    // all rows of a merchant are on one worker
	OnEachNode    Placement = "on each node"   // a reference table
	OnCoordinator Placement = "on coordinator" // not distributed
)

// Placements has the tables that are not reference tables. Tables that have few rows for each merchant, such as suppressed,
// are reference tables, so that one statement can ask about all merchants of a group.
var Placements = map[string]Placement{
	"event":   ByMerchant,
	"dedup":   ByMerchant,
	"link":    ByMerchant,
	"counter": ByMerchant,
	"usage":   ByMerchant,
	"tally":   ByMerchant,

	"held_link":   ByMerchant,
	"linked_muid": ByMerchant,

	// The row of a flush is where its commit is decided: with Citus, that is on the coordinator. All nodes ask for the last
	// rows several times a second: if they were distributed, they would ask all shards, and if they were on each node, each
	// flush would wait for all workers. They are the rows of one hour.
	"flush": OnCoordinator,
}

// Table is a table of a distributed database.
type Table struct {
	Name      string    `json:"name"`
	Placement Placement `json:"placement"`
	Moved     bool      `json:"moved"` // by this call
}

// Distribution is what Distribute has done.
type Distribution struct {
	Workers int     `json:"workers"`
	Tables  []Table `json:"tables"`
}

// Distribute hands the tables of a database over to the extension Citus, which must be there with at least one worker. It
// moves one table after the other, each in a transaction of its own. After a kill, another call goes on. While a table
// moves, what writes to it waits. At the end it turns off jit on the workers.
func Distribute(ctx context.Context, address string) (d Distribution, err error) {
	db, err := conn.Open(ctx, address, conn.Options{})
	if err != nil {
		return d, err
	}
	defer db.Close()
	pool := db.Pool
	if d.Workers, err = countWorkers(ctx, pool); err != nil {
		return d, err
	}
	if err := updateSchema(ctx, pool); err != nil {
		return d, err
	}
	if d.Tables, err = distributeTables(ctx, pool); err != nil {
		return d, err
	}
	if err := turnOffJIT(ctx, pool); err != nil {
		return d, fmt.Errorf("turn off jit: %w", err)
	}
	return d, nil
}

// turnOffJIT does on the workers what BeginRead does on the coordinator: a SET LOCAL does not reach them. The setting
// belongs to the role in this database. Citus passes it on to all workers, and to those that are added later. Open
// connections keep their setting. Sequential scans need no setting there: a worker keeps no plans, so it plans each
// statement for the size that the table has now.
//
// The setting of citus.propagate_set_commands would do the same, but each worker would log two warnings for each
// transaction.
func turnOffJIT(ctx context.Context, pool *pgxpool.Pool) error {
	var sql string
	if err := pool.QueryRow(ctx, "SELECT format('ALTER ROLE CURRENT_USER IN DATABASE %I SET jit = off', current_database())").Scan(&sql); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, sql)
	return err
}

// countWorkers returns how many workers may have shards. It refuses a database that cannot be distributed.
func countWorkers(ctx context.Context, pool *pgxpool.Pool) (workers int, err error) {
	installed, err := conn.HasCitus(ctx, pool)
	if err != nil {
		return 0, err
	}
	if !installed {
		return 0, errors.New("the database does not have the extension citus: run CREATE EXTENSION citus in this database, on the coordinator and on each worker")
	}
	var first, coordinator, mayRecover bool
	if err := pool.QueryRow(ctx, `SELECT (SELECT groupid = 0 FROM pg_dist_local_group), EXISTS (SELECT FROM pg_dist_node WHERE groupid = 0),
		(SELECT count(*) FROM pg_dist_node WHERE groupid <> 0 AND noderole = 'primary' AND isactive AND shouldhaveshards),
		has_function_privilege('recover_prepared_transactions()', 'EXECUTE')`).Scan(&first, &coordinator, &workers, &mayRecover); err != nil {
		return 0, err
	}
	switch {
	case !first:
		return 0, errors.New("the address is that of a worker: use that of the coordinator")
	case !coordinator:
		return 0, errors.New("the workers do not know the coordinator: run SELECT citus_set_coordinator_host('its host') on it")
	case workers == 0:
		return 0, errors.New("the coordinator has no workers: run SELECT citus_add_node('host', 5432) on it for each worker")
	case !mayRecover:
		return 0, errors.New("the user may not settle commits that a worker's failure has interrupted: run GRANT EXECUTE ON FUNCTION recover_prepared_transactions() TO the user")
	}
	return workers, nil
}

// distributeTables moves the tables that are not yet where they should be.
func distributeTables(ctx context.Context, pool *pgxpool.Pool) (tables []Table, err error) {
	// A table comes after those that it refers to, and event before those that are beside it. The tables of goose say what
	// the coordinator has.
	names, err := conn.Column[string](ctx, pool, `WITH RECURSIVE ours AS (SELECT oid, relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'
			AND relpersistence = 'p' AND relname NOT LIKE 'goose%'),
		deep (oid, relname, depth) AS (SELECT oid, relname, 0 FROM ours
			UNION ALL SELECT c.conrelid, o.relname, d.depth + 1 FROM deep d JOIN pg_constraint c ON c.confrelid = d.oid AND c.contype = 'f'
				AND c.conrelid <> c.confrelid JOIN ours o ON o.oid = c.conrelid)
		SELECT relname::text FROM deep GROUP BY relname ORDER BY max(depth), relname <> 'event', relname`)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		t := Table{Name: name, Placement: cmp.Or(Placements[name], OnEachNode)}
		if err := moveTable(ctx, pool, &t); err != nil {
			return tables, fmt.Errorf("distribute the table %s: %w", name, err)
		}
		tables = append(tables, t)
	}
	return tables, nil
}

// moveTable hands one table over. What was in it remains on the coordinator, where no statement sees it, until it is
// removed.
func moveTable(ctx context.Context, pool *pgxpool.Pool, t *Table) error {
	if t.Placement == OnCoordinator {
		return nil
	}
	if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// Another call may be at it.
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", conn.LockDistribute); err != nil {
			return err
		}
		// A table that refers to a reference table was registered with Citus together with it, but has not moved: its
		// partmethod is n, and its repmodel is not t.
		var there bool
		if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = $1::text::regclass
			AND (partmethod = 'h' OR repmodel = 't'))`, t.Name).Scan(&there); err != nil || there {
			return err
		}
		t.Moved = true
		sql, args := "SELECT create_reference_table($1)", []any{t.Name}
		if t.Placement == ByMerchant {
			sql, args = "SELECT create_distributed_table($1, 'merchant', colocate_with => $2)", []any{t.Name, "event"}
			if t.Name == "event" {
				args[1] = "none"
			}
		}
		_, err := tx.Exec(ctx, sql, args...)
		return err
	}); err != nil {
		return err
	}
	var left int64
	if err := pool.QueryRow(ctx, "SELECT pg_relation_size($1::text::regclass)", t.Name).Scan(&left); err != nil || left == 0 {
		return err
	}
	_, err := pool.Exec(ctx, "SELECT truncate_local_data_after_distributing_table($1::text::regclass)", t.Name)
	return err
}
