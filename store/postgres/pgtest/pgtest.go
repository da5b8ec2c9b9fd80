package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
)

var (
	server    *Server // of the test binary
	databases atomic.Int64
)

// Main runs the tests of a package with a server. prepare makes the template of all databases, such as their tables.
func Main(m *testing.M, prepare func(url string) error) int {
	var err error
	if server, err = start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := 1
	if err = errors.Join(server.exec("CREATE DATABASE prepared"), prepare(server.URL("prepared"))); err == nil {
		code = m.Run()
	}
	if err = errors.Join(err, server.Close()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// Database returns the address of a new database, a copy of the template. It is dropped when the test ends.
func Database(t testing.TB) (url string) {
	t.Helper()
	return database(t, "TEMPLATE prepared")
}

// EmptyDatabase returns the address of a new database without tables.
func EmptyDatabase(t testing.TB) (url string) {
	t.Helper()
	return database(t, "")
}

func database(t testing.TB, options string) (url string) {
	t.Helper()
	name := fmt.Sprintf("test%d", databases.Add(1))
	if err := server.exec("CREATE DATABASE " + name + " " + options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.exec("DROP DATABASE " + name + " WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	return server.URL(name)
}

// Disconnect ends all connections to a database, as a network cut does.
func Disconnect(t testing.TB, url string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND pid <> pg_backend_pid()`)
	if err := errors.Join(err, conn.Close(ctx)); err != nil {
		t.Fatal(err)
	}
}

// NewServer starts a server that the test may kill.
func NewServer(t testing.TB) *Server {
	t.Helper()
	s, err := start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
