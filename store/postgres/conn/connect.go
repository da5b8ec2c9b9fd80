package conn

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	ConnectTimeout = 5 * time.Second
	defaultConns   = 16 // unless the address says pool_max_conns
)

// configure returns the configuration of the connections to a database. It asks the server whether there is a pooler in
// between, unless the address has default_query_exec_mode.
func configure(ctx context.Context, address string) (*pgxpool.Config, error) {
	config, err := parseURL(address)
	if err != nil {
		return nil, err
	}
	if strings.Contains(address, "default_query_exec_mode") {
		return config, nil
	}
	// A pooler such as PgBouncer may run each transaction on another connection to the server, which does not know the named
	// statements of the one before.
	err = InTime(ctx, func(ctx context.Context) error {
		pooled, err := isPooler(ctx, config)
		if pooled {
			config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
		}
		return err
	})
	return config, Unavailable(err)
}

// parseURL returns the configuration of the connections. The address may name several servers: the one that accepts writes
// is used.
func parseURL(address string) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, err // without the password
	}
	if !strings.Contains(address, "pool_max_conns") {
		config.MaxConns = defaultConns
	}
	if !strings.Contains(address, "target_session_attrs") {
		config.ConnConfig.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = ConnectTimeout
	}
	if config.ConnConfig.RuntimeParams["application_name"] == "" {
		config.ConnConfig.RuntimeParams["application_name"] = "mtagd"
	}
	config.ConnConfig.RuntimeParams["client_encoding"] = "UTF8" // the default is the database's, which checkSettings looks at
	config.ConnConfig.OnNotice = noteIncompleteCommit
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		encodeFast(conn.TypeMap())
		return nil
	}
	return config, nil
}

// isPooler reports whether connections lead to a pooler: it announces a process that is not the one that runs the
// statements.
func isPooler(ctx context.Context, config *pgxpool.Config) (pooled bool, err error) {
	once := config.ConnConfig.Copy()
	once.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(ctx, once)
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, conn.Close(ctx)) }()
	var pid uint32
	err = conn.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid)
	return pid != conn.PgConn().PID(), err
}

// checkSettings refuses a database that cannot store all characters, and a server whose commits do not wait until they are
// durable. If that is set later, flushes and changes wait all the same (durably).
func checkSettings(ctx context.Context, pool *pgxpool.Pool) error {
	var encoding, level string
	if err := pool.QueryRow(ctx, "SELECT current_setting('server_encoding'), current_setting('synchronous_commit')").Scan(&encoding, &level); err != nil {
		return err
	}
	if encoding != "UTF8" {
		return fmt.Errorf("the encoding of the database is %s: it must be UTF8. Create the database with ENCODING 'UTF8'", encoding)
	}
	if level == "off" || level == "local" {
		return fmt.Errorf("synchronous_commit is %s in the database: events would be acknowledged before they are durable. Set it to on", level)
	}
	return nil
}
