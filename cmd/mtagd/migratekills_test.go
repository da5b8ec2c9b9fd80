package main

import (
	"flag"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"mtagd/store/postgres/pgtest"
)

var migrationKills = flag.Int("migration-kills", 3, "how often TestKilledMigrations kills something in each direction")

// migrations move a service under load into a database and back.
type migrations struct {
	*senders
	server *pgtest.Server
	url    string
	back   string     // the data directory at the end
	nodes  []*service // that run
}

func (m *migrations) fatal(what string, err error) {
	m.b.t.Helper()
	if err != nil {
		m.b.t.Fatalf("%s: %v", what, err)
	}
}

// launch starts a node, and sends events to it.
func (m *migrations) launch(data string, flags ...string) {
	m.b.t.Helper()
	s, err := launchService(data, m.b.zone.address, flags...)
	m.fatal("start", err)
	m.nodes = append(m.nodes, s)
	m.to.Store(s)
	m.b.t.Cleanup(func() {
		if !s.ended {
			m.fatal("kill", s.kill())
		}
	})
}

// in and out are the commands of the two directions.
func (m *migrations) in() *exec.Cmd {
	return exec.Command("mtagd", "migrate", "--data", m.b.data, "--to", m.url)
}

func (m *migrations) out() *exec.Cmd {
	return exec.Command("mtagd", "migrate", "--store", m.url, "--to", m.back)
}

// ready returns what /readyz of a node says; "ready" when it is.
func ready(s *service) string {
	resp, err := http.Get("http://" + s.admin + "/readyz")
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode == http.StatusOK {
		return "ready"
	}
	return string(text)
}

// interrupt runs a command, kills it or something that it needs at a random moment after it has begun to copy, and waits until it has
// ended. done reports whether it has succeeded all the same.
func (m *migrations) interrupt(c *exec.Cmd, copies func() bool, kill func(c *exec.Cmd)) (done bool) {
	m.b.t.Helper()
	m.fatal("start a migration", c.Start())
	for deadline := time.Now().Add(startTimeout); !copies() && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
	}
	time.Sleep(rand.N(60 * time.Millisecond)) // a random moment
	kill(c)
	done = c.Wait() == nil
	m.b.t.Logf("interrupted: %v", !done)
	return done
}

// copiesIn reports whether the server has begun to copy since the call of copiesIn.
func (m *migrations) copiesIn() func() bool {
	count := func() int { return strings.Count(m.nodes[0].Log(), `"phase":"copy"`) }
	before := count()
	return func() bool { return count() > before }
}

// copiesOut reports whether the directory is being filled. It may have a part of an earlier run.
func (m *migrations) copiesOut() bool {
	_, err := os.Stat(filepath.Join(m.back, "moving", "control.db"))
	return err == nil
}

func (m *migrations) killCommand(c *exec.Cmd) {
	_ = c.Process.Signal(syscall.SIGKILL) // it may have ended
}

func (m *migrations) killDatabase(*exec.Cmd) {
	m.fatal("kill the database", m.server.Crash())
	m.fatal("start the database", m.server.Start())
}

// finish runs a command until it has succeeded.
func (m *migrations) finish(command func() *exec.Cmd) {
	m.b.t.Helper()
	began := time.Now()
	for {
		text, err := command().CombinedOutput()
		if err == nil {
			m.b.t.Logf("%v: %s", time.Since(began), text)
			return
		}
		if time.Since(began) > 3*startTimeout {
			m.b.t.Fatalf("%v: %s", err, text)
		}
	}
}

// A service moves into a database and back under load. Meanwhile the command, the server and PostgreSQL are killed at random moments. In the
// end each acknowledged event is there once.
func TestKilledMigrations(t *testing.T) {
	m := &migrations{senders: &senders{b: newTaggedService(t), pause: 2 * time.Millisecond}, server: pgtest.NewServer(t), back: filepath.Join(t.TempDir(), "back")}
	m.url = m.server.URL("postgres")
	m.nodes = []*service{m.b.service}
	m.start(3)
	m.await(300)

	moved := false
	for i := range *migrationKills {
		if moved {
			break
		}
		how := []func(*exec.Cmd){m.killCommand, m.killDatabase, func(*exec.Cmd) {
			m.fatal("kill the server", m.nodes[0].kill())
		}}[i%3]
		moved = m.interrupt(m.in(), m.copiesIn(), how)
		if s := m.nodes[0]; s.ended {
			next, err := launchService(m.b.data, m.b.zone.address)
			if err != nil && strings.Contains(err.Error(), "has moved to") {
				moved = true
				break
			}
			m.fatal("start again", err)
			m.nodes[0] = next
			m.to.Store(next)
		}
		if !moved && strings.Contains(m.nodes[0].Log(), "all data has moved") {
			moved = true // the command was killed after that
		}
		m.senders.await(m.sent.Load() + 50)
	}
	m.finish(m.in)
	if s := m.nodes[0]; s.ended {
		m.nodes = nil
	} else {
		m.senders.await(m.sent.Load() + 50) // the same process goes on with the database
	}
	m.launch(t.TempDir(), "--store", m.url)
	m.launch(t.TempDir(), "--store", m.url)
	m.senders.await(m.sent.Load() + 100)

	for i := range *migrationKills {
		how := []func(*exec.Cmd){m.killCommand, func(*exec.Cmd) {
			s := m.nodes[len(m.nodes)-1]
			m.nodes = m.nodes[:len(m.nodes)-1]
			m.to.Store(m.nodes[0])
			m.fatal("kill a node", s.kill())
		}, m.killDatabase}[i%3]
		if m.interrupt(m.out(), m.copiesOut, how) {
			break
		}
		if strings.Contains(ready(m.nodes[0]), "has moved to") {
			break
		}
		m.senders.await(m.sent.Load() + 50)
	}
	m.finish(m.out)
	for _, s := range m.nodes {
		for deadline := time.Now().Add(startTimeout); !strings.Contains(ready(s), "has moved to the directory "+m.back); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("a node says %s", ready(s))
			}
		}
		m.fatal("stop a node", s.stop())
	}
	if out, err := exec.Command("mtagd", serveArgs(t.TempDir(), m.b.zone.address, []string{"--store", m.url})...).CombinedOutput(); err == nil || !strings.Contains(string(out), "has moved to the directory") {
		t.Errorf("a node starts on a database that has moved: %v: %s", err, out)
	}
	if out, err := m.out().CombinedOutput(); err != nil || !strings.Contains(string(out), " moved to the directory ") {
		t.Errorf("the same migration again: %v: %s", err, out)
	}
	if out, err := exec.Command("mtagd", "migrate", "--store", m.url, "--to", t.TempDir()).CombinedOutput(); err == nil || !strings.Contains(string(out), "already") {
		t.Errorf("a migration of what has moved, to another directory: %v: %s", err, out)
	}
	m.fatal("move the directory", os.Rename(m.back, m.back+" mounted elsewhere"))
	m.back += " mounted elsewhere"
	if out, err := m.out().CombinedOutput(); err != nil {
		t.Errorf("the same migration again, with the directory at another path: %v: %s", err, out)
	}
	m.launch(m.back)
	m.senders.await(m.sent.Load() + 100)
	n := m.end()
	m.b.service = m.to.Load()
	listed, total := m.b.muids()
	if len(listed) != n || total != n {
		t.Errorf("%d events are listed of %d muids, want %d", total, len(listed), n)
	}
	fed := 0
	for query, more := "", true; more; {
		page := m.b.api("GET", "/v1/partners/events/feed?limit=1000"+query, "")
		fed += len(page["events"].([]any))
		query, more = "&after="+page["cursor"].(string), page["hasMore"].(bool)
	}
	if fed != n {
		t.Errorf("the feed has %d events, want %d", fed, n)
	}
	t.Logf("%d events, %d answers 503", n, m.refused.Load())
}
