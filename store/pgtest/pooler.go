package pgtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mtagd/store/testenv"
)

// Pooler starts PgBouncer in front of the databases of Database, and returns the function that makes the address of a
// database one that leads through it. mode is its pool_mode. The test is skipped where PgBouncer is not installed.
func Pooler(t testing.TB, mode string) func(address string) string {
	t.Helper()
	Need(t)
	path := testenv.Program(t, "pgbouncer")
	pooler, err := New("pgbouncer", Options{}) // for its directory and its user
	testenv.Check(t, err)
	t.Cleanup(func() {
		if err := pooler.remove(); err != nil {
			t.Error(err)
		}
	})
	// Few connections to the server: then the clients share them.
	config := fmt.Sprintf(`[databases]
* = host=%s user=mtagd
[pgbouncer]
listen_addr =
listen_port = 5432
unix_socket_dir = %s
auth_type = any
pool_mode = %s
default_pool_size = %d
max_client_conn = 500
server_check_delay = 0
`, server.dir, pooler.dir, mode, map[string]int{"transaction": 4, "session": 100}[mode])
	file := filepath.Join(pooler.dir, "pgbouncer.ini")
	testenv.Check(t, os.WriteFile(file, []byte(config), 0o644))
	cmd := exec.Command(path, file)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if cmd.SysProcAttr, err = pooler.attributes(); err != nil {
		t.Fatal(err)
	}
	testenv.Check(t, cmd.Start())
	t.Cleanup(func() {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // it ends by the signal
		if t.Failed() {
			t.Logf("%s", out.Bytes())
		}
	})
	pooled := func(address string) string { return through(pooler.dir, address) }
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		conn, err := pgx.Connect(ctx, pooled(server.URL("postgres")))
		if err == nil {
			testenv.Check(t, conn.Close(ctx))
			return pooled
		}
		if ctx.Err() != nil {
			t.Fatalf("pgbouncer does not answer: %v: %s", err, out.Bytes())
		}
		time.Sleep(10 * time.Millisecond)
	}
}
