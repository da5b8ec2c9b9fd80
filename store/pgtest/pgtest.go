package pgtest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"mtagd/store/testenv"
)

var (
	server    *Server // of the test binary
	databases atomic.Int64
	reused    *sessions // of server
)

// Need skips a test where PostgreSQL is not installed, and with -short.
func Need(t testing.TB) {
	t.Helper()
	testenv.NotShort(t, "PostgreSQL")
	if _, err := find("initdb"); err != nil {
		testenv.Missing(t, err.Error())
	}
}

// Main runs the tests of a package with a server, if PostgreSQL is installed. prepare makes the template of all databases,
// such as their tables.
func Main(m *testing.M, prepare func(url string) error) int {
	flag.Parse()
	_, err := find("initdb")
	if err != nil || testing.Short() {
		return m.Run()
	}
	if server, err = Start(Options{keep: true}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := 1
	if reused, err = newSessions(server); err == nil {
		err = errors.Join(server.Exec("CREATE DATABASE prepared"), prepare(server.URL("prepared")))
	}
	if err == nil {
		code = m.Run()
	}
	if err = errors.Join(err, server.Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// pool has the databases that tests have emptied again: that is much faster than making new ones. Its zero value is ready.
type pool struct {
	mu   sync.Mutex
	free []string // their addresses
}

// database returns the address of a database of the pool, or of a new one, until the test ends.
func (p *pool) database(t testing.TB, create func() (url string)) (url string) {
	t.Helper()
	p.mu.Lock()
	if n := len(p.free); n > 0 {
		url, p.free = p.free[n-1], p.free[:n-1]
	}
	p.mu.Unlock()
	if url == "" {
		url = create()
	}
	t.Cleanup(func() {
		if err := empty(url); err != nil {
			t.Error(err)
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.free = append(p.free, url)
	})
	return url
}

var prepared pool // with the tables of the template

// Database returns the address of a database with the template's empty tables.
func Database(t testing.TB) (url string) {
	t.Helper()
	Need(t)
	return prepared.database(t, func() string { return create(t, " TEMPLATE prepared") })
}

// EmptyDatabase returns the address of a new database without tables.
func EmptyDatabase(t testing.TB) (url string) {
	t.Helper()
	Need(t)
	return create(t, "")
}

func create(t testing.TB, options string) (url string) {
	t.Helper()
	name := fmt.Sprintf("test%d", databases.Add(1))
	testenv.Check(t, server.Exec("CREATE DATABASE "+name+options))
	return through(reused.dir, server.URL(name))
}

// through returns the address of a database that leads through a socket in another directory.
func through(dir, address string) string {
	u, err := url.Parse(address)
	if err != nil {
		panic(err) // Server.URL has made it
	}
	q := u.Query()
	q.Set("host", dir)
	u.RawQuery = q.Encode()
	return u.String()
}

// empty removes all rows of a database, except those that say which migrations were applied. No client is left to
// it: only sessions that wait for the next one. To truncate a table is expensive, so those without a page are left alone.
func empty(url string) error {
	return run(url, `DO $$ DECLARE written text; BEGIN
		PERFORM pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND NOT `+isLeft+`;
		SELECT string_agg(quote_ident(relname), ', ') INTO written FROM pg_class
			WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relname NOT LIKE 'goose%' AND pg_relation_size(oid) > 0;
		IF written IS NOT NULL THEN EXECUTE 'TRUNCATE ' || written; END IF;
		PERFORM setval(oid, 1, false) FROM pg_class
			WHERE relkind = 'S' AND relnamespace = 'public'::regnamespace AND relname NOT LIKE 'goose%';
	END $$`, flush)
}

// EndConnections ends the connections of all clients of a database, as a network cut does. It waits until they have ended: a
// pooler would give one that is about to end to the next client.
func EndConnections(url string) error {
	return run(url, `SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND NOT `+isLeft)
}

// run runs statements, one by one.
func run(url string, statements ...string) error {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	for _, sql := range statements {
		if _, err = conn.Exec(ctx, sql); err != nil {
			break
		}
	}
	return errors.Join(err, conn.Close(ctx))
}

// NewServer starts a server that the test may kill.
func NewServer(t testing.TB) *Server {
	t.Helper()
	return NewServerWith(t, Options{})
}

// NewServerWith is NewServer with options.
func NewServerWith(t testing.TB, options Options) *Server {
	t.Helper()
	Need(t)
	s, err := Start(options)
	testenv.Check(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
