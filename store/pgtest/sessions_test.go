package pgtest

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mtagd/store/testenv"
)

// A client must not notice that its session was another client's before.
func TestSessionsAreReused(t *testing.T) {
	server := NewServer(t)
	k, err := newSessions(server)
	testenv.Check(t, err)
	open := func() *pgx.Conn {
		c, err := pgx.Connect(t.Context(), through(k.dir, server.URL("postgres")))
		testenv.Check(t, err)
		return c
	}
	do := func(c *pgx.Conn, sql string) {
		t.Helper()
		_, err := c.Exec(t.Context(), sql)
		testenv.Check(t, err)
	}
	closed := func(c *pgx.Conn) (pid uint32) {
		testenv.Check(t, c.Close(t.Context()))
		return c.PgConn().PID()
	}
	left := func(n int) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			k.mu.Lock()
			all := len(k.left)
			k.mu.Unlock()
			if all == n {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%d sessions are left instead of %d", all, n)
			}
		}
	}
	first := open()
	do(first, "CREATE TEMP TABLE mine (); SET work_mem = '1MB'; SELECT pg_advisory_lock(1)")
	pid := closed(first)
	left(1)

	second := open()
	var mine, memory string
	var locks int
	testenv.Check(t, second.QueryRow(t.Context(), "SELECT coalesce(to_regclass('mine')::text, ''), current_setting('work_mem'), "+
		"(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory')").Scan(&mine, &memory, &locks))
	if second.PgConn().PID() != pid || mine != "" || memory == "1MB" || locks > 0 {
		t.Fatalf("session %d after %d: table %q, work_mem %s, %d locks", second.PgConn().PID(), pid, mine, memory, locks)
	}
	do(second, "BEGIN")
	closed(second)
	testenv.Check(t, server.Exec(fmt.Sprintf(`DO $$ BEGIN WHILE EXISTS (SELECT FROM pg_stat_activity WHERE pid = %d) LOOP
		PERFORM pg_sleep(0.01), pg_stat_clear_snapshot(); END LOOP; END $$`, pid)))
	third := open()
	if third.PgConn().PID() == pid {
		t.Error("a client got a session in a transaction")
	}
	pid = closed(third)
	left(1)
	testenv.Check(t, server.Exec(fmt.Sprintf("SELECT pg_terminate_backend(%d, 60000)", pid)))
	if fourth := open(); closed(fourth) == pid {
		t.Error("a client got a session that had ended")
	}
}
