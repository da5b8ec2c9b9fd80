package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mtagd/store/pgtest"
)

// senders send events with an event_id each, until all are acknowledged. They send again what is not, as the tag does.
type senders struct {
	b       *taggedService
	pause   time.Duration // between events of a sender
	to      atomic.Pointer[service]
	all     sync.WaitGroup
	stop    atomic.Bool
	sent    atomic.Int64 // acknowledged events
	refused atomic.Int64 // answers 503
}

func (s *senders) start(workers int) {
	s.to.Store(s.b.service)
	for w := range workers {
		s.all.Go(func() {
			for i := 0; !s.stop.Load(); i++ {
				id := fmt.Sprintf("w%d-%d", w, i)
				for {
					a, err := s.to.Load().do(s.b.client, request{host: tagHost, method: "POST", path: "/mark/" + s.b.tag,
						body: fmt.Sprintf(`{"muid":%q,"event":"Purchase","event_id":%q}`, id, id)})
					if err == nil && a.status == http.StatusCreated {
						s.sent.Add(1)
						time.Sleep(s.pause)
						break
					}
					if err == nil && a.status != http.StatusServiceUnavailable {
						s.b.t.Errorf("an event is answered %d %s", a.status, a.body)
						return
					}
					if err == nil {
						s.refused.Add(1)
						if a.header.Get("Retry-After") == "" {
							s.b.t.Error("503 without Retry-After")
						}
					}
					time.Sleep(5 * time.Millisecond)
				}
			}
		})
	}
}

// await waits until so many events are acknowledged.
func (s *senders) await(n int64) {
	s.b.t.Helper()
	for deadline := time.Now().Add(startTimeout); s.sent.Load() < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.b.t.Fatalf("%d of %d events are acknowledged: %s", s.sent.Load(), n, s.b.Log())
		}
	}
}

func (s *senders) end() int {
	s.stop.Store(true)
	s.all.Wait()
	return int(s.sent.Load())
}

// fed returns how many events the feed has after a cursor.
func (b *taggedService) fed(cursor string) (n int) {
	b.t.Helper()
	for query, more := "&after="+cursor, true; more; {
		page := b.api("GET", "/v1/partners/events/feed?limit=1000"+query, "")
		n += len(page["events"].([]any))
		query, more = "&after="+page["cursor"].(string), page["hasMore"].(bool)
	}
	return n
}

// expect expects that n events are listed, each of a visitor of its own.
func (b *taggedService) expect(n int) {
	b.t.Helper()
	if listed, total := b.muids(); len(listed) != n || total != n {
		b.t.Errorf("%d events are listed of %d muids, want %d", total, len(listed), n)
	}
}

// tryAgain is the time before a command is tried again: without it, the processes of the command would take all processors.
const tryAgain = 100 * time.Millisecond

// A service moves into a database under load. Meanwhile the command, the server and PostgreSQL are killed. Then it is
// stopped, and moves back. Every acknowledged event is there once; the feed goes on where it was; and after the switch the
// same process goes on with the same addresses.
func TestMigrateUnderLoad(t *testing.T) {
	b := newTaggedService(t)
	database := pgtest.NewServer(t)
	url := database.URL("postgres")
	s := &senders{b: b, pause: 20 * time.Millisecond} // with a shorter one, they would cost more than the migration
	s.start(4)
	s.await(200)
	cursor := b.api("GET", "/v1/partners/events/feed?limit=100", "")["cursor"].(string)
	in := func() *exec.Cmd { return exec.Command("mtagd", "migrate", "--data", b.data, "--to", url) }

	limited := func() context.Context { // for a start that must fail
		ctx, cancel := context.WithTimeout(t.Context(), 3*startTimeout)
		t.Cleanup(cancel)
		return ctx
	}
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v: %s", what, err, b.Log())
		}
	}
	// A migration goes on for a while when its command is killed. Meanwhile the server refuses another one.
	underWay := func(said string) bool { return strings.Contains(said, "is under way already") }
	var said *strings.Builder
	begin := func() (c *exec.Cmd, ended chan error) {
		t.Helper()
		c, said, ended = in(), new(strings.Builder), make(chan error, 1)
		c.Stderr = said
		must("start a migration", c.Start())
		go func() { ended <- c.Wait() }()
		return c, ended
	}
	kills := map[string]func(command *exec.Cmd) error{
		"the command": func(c *exec.Cmd) error { _ = c.Process.Kill(); return nil }, /* it may have ended */
		"the server":  func(*exec.Cmd) error { return b.kill() },
		"PostgreSQL":  func(*exec.Cmd) error { return errors.Join(crash(database), database.Start()) },
	}
	for what, kill := range kills {
		before := strings.Count(b.Log(), `"phase":"copy"`)
		c, ended := begin()
		for deadline := time.Now().Add(startTimeout); strings.Count(b.Log(), `"phase":"copy"`) == before && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if len(ended) > 0 && underWay(said.String()) {
				time.Sleep(tryAgain)
				c, ended = begin()
			}
		}
		must("kill "+what, kill(c))
		if err := <-ended; err == nil {
			t.Logf("the migration had ended before %s was killed", what)
			break
		} else if what == "the server" && !strings.Contains(said.String(), "Run the same command again") {
			t.Errorf("%v: %s", err, said.String())
		}
		if b.ended {
			next, err := launchService(b.data, b.zone.address)
			if err != nil && strings.Contains(err.Error(), "has moved to") {
				break // it was killed at the very end
			}
			must("start again", err)
			b.service = next
			s.to.Store(next)
		}
		if strings.Contains(b.Log(), "all data has moved") {
			break
		}
		s.await(s.sent.Load() + 50)
	}
	out, err := in().Output()
	for failed, _ := errors.AsType[*exec.ExitError](err); err != nil; failed, _ = errors.AsType[*exec.ExitError](err) {
		if !underWay(string(failed.Stderr)) {
			t.Fatalf("%v: %s: %s", err, failed.Stderr, b.Log())
		}
		time.Sleep(tryAgain)
		out, err = in().Output()
	}
	var result struct{ Events, Merchants int }
	if err := json.Unmarshal(out, &result); len(out) > 0 && (err != nil || result.Events < 200 || result.Merchants != 1) {
		t.Errorf("the command prints %s", out)
	}
	if b.ended {
		next, err := launchService(b.data, b.zone.address, "--store", url)
		must("start with the database", err)
		b.service = next
		s.to.Store(next)
	}
	s.await(s.sent.Load() + 200)
	n := s.end()
	t.Logf("%s; %d events, %d answers 503", out, n, s.refused.Load())
	b.expect(n)
	if fed := 100 + b.fed(cursor); fed != n {
		t.Errorf("the feed has %d events, want %d", fed, n)
	}
	a, err := b.do(b.client, request{host: tagHost, method: "POST", path: "/mark/" + b.tag, body: `{"muid":"w0-0","event":"Purchase","event_id":"w0-0"}`})
	if err != nil || a.status != http.StatusCreated {
		t.Errorf("a repeated event is answered %d %s, %v", a.status, a.body, err)
	}
	b.expect(n)
	cursor = b.api("GET", "/v1/partners/events/feed?after=latest", "")["cursor"].(string)

	ctx := limited()
	db, err := pgx.Connect(ctx, url)
	must("connect", err)
	for nodes := 0; nodes == 0; time.Sleep(10 * time.Millisecond) { // others do not know of a node that has just started
		must("look for the node", db.QueryRow(ctx, "SELECT count(*) FROM message").Scan(&nodes))
	}
	must("close", db.Close(ctx))
	back := filepath.Join(t.TempDir(), "back")
	home := exec.Command("mtagd", "migrate", "--store", url, "--to", back)
	if out, err := home.CombinedOutput(); err == nil || !strings.Contains(string(out), "a node of the database is running") {
		t.Errorf("a migration back beside a node: %v: %s", err, out)
	}
	must("stop", b.stop())
	if out, err := exec.CommandContext(limited(), "mtagd", serveArgs(b.data, b.zone.address, nil)...).CombinedOutput(); err == nil || !strings.Contains(string(out), "its data has moved to postgres://") {
		t.Errorf("serve on the old directory: %v: %s", err, out)
	}
	if out, err := in().CombinedOutput(); err != nil || !strings.Contains(string(out), " moved to ") {
		t.Errorf("the same migration again: %v: %s", err, out)
	}

	for killed := true; ; {
		c := exec.Command(home.Path, home.Args[1:]...)
		var said strings.Builder
		c.Stdout, c.Stderr = &said, &said
		must("start a migration back", c.Start())
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		for killed {
			if _, err := os.Stat(filepath.Join(back, "control.db")); err == nil {
				_ = c.Process.Kill() // it may have ended
				break
			}
			if len(ended) > 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		err := <-ended
		if strings.Contains(said.String(), "a node of the database is running") {
			time.Sleep(tryAgain)
			continue // a node that was killed counts as running for a few seconds
		}
		if err == nil || !killed { // the end may come before the kill
			must("migrate back: "+said.String(), err)
			break
		}
		killed = false
		if out, err := exec.CommandContext(limited(), "mtagd", serveArgs(back, b.zone.address, nil)...).CombinedOutput(); err == nil || !strings.Contains(string(out), "has not finished") {
			t.Errorf("serve on a directory that lacks events: %v: %s", err, out)
		}
	}
	if out, err := exec.CommandContext(limited(), "mtagd", serveArgs(t.TempDir(), b.zone.address, []string{"--store", url})...).CombinedOutput(); err == nil || !strings.Contains(string(out), "has moved to the directory "+back) {
		t.Errorf("a node starts on a database that has moved: %v: %s", err, out)
	}
	if out, err := exec.CommandContext(limited(), home.Path, home.Args[1:]...).CombinedOutput(); err != nil || !strings.Contains(string(out), "everything is in the directory "+back) {
		t.Errorf("the same migration back again: %v: %s", err, out)
	}
	b.service, err = launchService(back, b.zone.address)
	must("start on the directory", err)
	b.expect(n)
	if _, err := b.do(b.client, request{host: tagHost, method: "POST", path: "/mark/" + b.tag, body: `{"muid":"last","event":"Purchase"}`}); err != nil {
		t.Error(err)
	}
	if fed := b.fed(cursor); fed != 1 {
		t.Errorf("after the migration back the feed has %d new events, want 1", fed)
	}
	must("stop", b.stop())
}
