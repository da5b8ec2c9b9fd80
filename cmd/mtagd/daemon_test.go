package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mtagd/store"
	"mtagd/store/pgtest"
	"mtagd/store/testenv"
)

// The hourly recheck of DNS runs without TLS, too. It ends with the service: later it would use a closed engine.
func TestDaemonRechecksDNSWithoutTLS(t *testing.T) {
	t.Setenv("GOMAXPROCS", "2") // leave the threads and the memory limit of this process alone
	t.Setenv("GOMEMLIMIT", "1GiB")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	d := newDaemon(config{
		Data: t.TempDir(), Log: slog.New(slog.DiscardHandler), serveCommand: serveCommand{
			HTTP: "127.0.0.1:0", Admin: adminOff, BaseHost: baseHost, ClientTagHost: tagHost, CNAMETarget: cnameTarget, DNSResolver: []string{"127.0.0.1:1"},
		},
	})
	go func() { ended <- d.serveUntil(ctx) }()
	for deadline := time.Now().Add(startTimeout); !runs(".(*Recheck).run("); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Error("the recheck does not run")
			break
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if runs(".(*Recheck).run(") {
		t.Error("the recheck still runs")
	}
}

// A node may start while the database is away, also at the end of a migration. It waits, and goes on when the database is
// back.
func TestTheStartWaitsForTheDatabase(t *testing.T) {
	database := pgtest.NewServer(t)
	if err := crash(database); err != nil {
		t.Fatal(err)
	}
	text, logged := io.Pipe()
	d := newDaemon(config{
		Data: t.TempDir(), Store: database.URL("postgres"), Log: slog.New(slog.NewTextHandler(logged, nil)),
	})
	opened := make(chan error, 1)
	go func() {
		err := d.openData(t.Context())
		opened <- errors.Join(err, d.stop(), logged.Close())
	}()
	lines := bufio.NewScanner(text)
	if !lines.Scan() || !strings.Contains(lines.Text(), "the start waits for it") {
		t.Errorf("the log says %q", lines.Text())
	}
	if err := database.Start(); err != nil {
		t.Fatal(err)
	}
	for lines.Scan() { // an unread pipe would block the engine
	}
	if err := <-opened; err != nil {
		t.Error(err)
	}
}

// busyDatabase cannot be used until its seed is asked for again.
type busyDatabase struct {
	store.Engine
	sharedFiles
	asked int
}

func (b *busyDatabase) Files(ctx context.Context, path string, content bool) ([]store.File, error) {
	if b.asked++; b.asked == 1 {
		return nil, store.Unavailable("the database does not answer")
	}
	return []store.File{{Path: path, Content: make([]byte, 16)}}, nil
}

func (b *busyDatabase) Exchange(ctx context.Context, _ []byte) ([][]byte, int, error) {
	<-ctx.Done()
	return nil, 0, ctx.Err()
}

// The database may become too busy after it was opened. The start waits then too.
func TestTheStartWaitsForTheSeedOfTheLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		database := &busyDatabase{}
		d := newDaemon(config{Store: "postgres://database", serveCommand: serveCommand{Limits: "on"}, Log: slog.New(slog.DiscardHandler)})
		d.engine = database
		testenv.Check(t, d.shareLimits(t.Context()))
		testenv.Check(t, d.stop())
		if database.asked != 2 {
			t.Errorf("the seed was asked for %d times, want 2", database.asked)
		}
	})
}

// A node that is stopped while it waits for its database has not failed.
func TestTheStopOfAStartThatWaits(t *testing.T) {
	text, logged := io.Pipe()
	ctx, stop := context.WithCancel(t.Context())
	d := newDaemon(config{
		Data: t.TempDir(), serveCommand: serveCommand{HTTP: "127.0.0.1:0", Admin: adminOff}, Log: slog.New(slog.NewTextHandler(logged, nil)),
		Store: "postgres://mtagd@127.0.0.1:1/mtagd",
	})
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(d.serveUntil(ctx), logged.Close()) }()
	lines := bufio.NewScanner(text)
	if !lines.Scan() || !strings.Contains(lines.Text(), "the start waits for it") {
		t.Errorf("the log says %q", lines.Text())
	}
	stop()
	for lines.Scan() {
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// runs reports whether a goroutine of this process is in a function.
func runs(function string) bool {
	stacks := make([]byte, 4<<20)
	return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), function)
}

// The slack of Go's monitor thread is the one that matters. Nothing shows which thread that is, so check all of them.
func TestAllThreadsHaveRelaxedTimers(t *testing.T) {
	s, err := launch(exec.Command("mtagd", serveArgs(t.TempDir(), "127.0.0.1:1", nil)...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stop(); err != nil {
			t.Error(err)
		}
	})
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", s.cmd.Process.Pid))
	if err != nil || len(threads) < 3 {
		t.Fatalf("%d threads, %v", len(threads), err)
	}
	for _, thread := range threads {
		slack, err := os.ReadFile(filepath.Join("/proc", filepath.Base(thread), "timerslack_ns"))
		if errors.Is(err, fs.ErrPermission) {
			testenv.Skip(t, "only root may read the timer slack of another process")
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // it has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSpace(string(slack)); got != fmt.Sprint(timerSlack.Nanoseconds()) {
			t.Errorf("a thread's timer slack is %s ns, want %d", got, timerSlack.Nanoseconds())
		}
	}
}
