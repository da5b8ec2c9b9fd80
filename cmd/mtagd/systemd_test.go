package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"mtagd/store"
)

// fakeSystemd starts services as systemd does: it opens their listening sockets, and gets their messages.
type fakeSystemd struct {
	t        *testing.T
	data     string
	resolver string
	sockets  []*os.File
	names    []string
	notify   string // NOTIFY_SOCKET

	mu       sync.Mutex
	received []string // lines of messages
}

func newFakeSystemd(t *testing.T) *fakeSystemd {
	t.Helper()
	zone, err := startZone()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(zone.stop)
	dir, err := os.MkdirTemp("", "mtagd") // t.TempDir may be too long for the address of a Unix socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	messages, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { messages.Close() })
	f := &fakeSystemd{t: t, data: filepath.Join(t.TempDir(), "data"), resolver: zone.address, notify: messages.LocalAddr().String()}
	go f.receive(messages)
	return f
}

func (f *fakeSystemd) receive(messages io.Reader) {
	for buf := make([]byte, 4096); ; {
		n, err := messages.Read(buf)
		if err != nil {
			return
		}
		f.mu.Lock()
		f.received = append(f.received, strings.Split(string(buf[:n]), "\n")...)
		f.mu.Unlock()
	}
}

// open opens a listening socket and returns its address.
func (f *fakeSystemd) open(name, address string) string {
	f.t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		f.t.Fatal(err)
	}
	defer listener.Close()
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { socket.Close() })
	f.sockets, f.names = append(f.sockets, socket), append(f.names, name)
	return listener.Addr().String()
}

// command runs "mtagd serve" with the sockets. The shell sets LISTEN_PID to its own process, which becomes mtagd.
func (f *fakeSystemd) command(flags ...string) *exec.Cmd {
	args := append([]string{"-c", `LISTEN_PID=$$ exec mtagd "$@"`, "sh"}, serveArgs(f.data, f.resolver, flags)...)
	cmd := exec.Command("sh", args...)
	cmd.ExtraFiles = f.sockets
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+f.notify, "WATCHDOG_USEC=1000000",
		fmt.Sprintf("LISTEN_FDS=%d", len(f.sockets)), "LISTEN_FDNAMES="+strings.Join(f.names, ":"))
	return cmd
}

// fail runs a command that should not start a service, and returns all that it writes.
func (f *fakeSystemd) fail(flags ...string) (output string, err error) {
	f.t.Helper()
	cmd := f.command(flags...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	timer := time.AfterFunc(startTimeout, func() { cmd.Process.Kill() }) // fails only when the process has just ended
	defer timer.Stop()
	err = cmd.Wait()
	return out.String(), err
}

func (f *fakeSystemd) start(flags ...string) *service {
	f.t.Helper()
	s, err := launch(f.command(flags...))
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if !s.ended {
			s.stop()
		}
	})
	return s
}

// waitMessage waits for a line, and drops it and the lines before it.
func (f *fakeSystemd) waitMessage(line string) {
	f.t.Helper()
	eventually(f.t, "the message "+line, func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		i := slices.Index(f.received, line)
		f.received = f.received[i+1:]
		return i >= 0
	})
}

// The service takes the sockets that systemd has opened in place of its flags' addresses. It tells systemd when it
// answers, whether it accepts events, that it is alive, and when it stops.
func TestUnderSystemd(t *testing.T) {
	f := newFakeSystemd(t)
	plain, secure, admin := f.open("http", "127.0.0.1:0"), f.open("https", "127.0.0.1:0"), f.open("admin", "127.0.0.1:0")
	s := f.start("--tls", "acme", "--https", "127.0.0.1:0", "--acme-ca", "https://127.0.0.1:1/")
	if s.http != plain || s.https != secure || s.admin != admin {
		t.Errorf("listens at %s, %s and %s, want %s, %s and %s", s.http, s.https, s.admin, plain, secure, admin)
	}
	f.waitMessage("READY=1")
	f.waitMessage("STATUS=events are accepted")
	f.waitMessage("WATCHDOG=1")
	f.waitMessage("WATCHDOG=1")
	if err := s.waitReady(); err != nil {
		t.Error(err)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	f.waitMessage("STOPPING=1")
}

// A socket that the service would never accept connections from stops the start: its connections would wait for ever.
func TestSocketsThatTheServiceDoesNotUse(t *testing.T) {
	for _, c := range []struct{ name, address, flag, value, says string }{
		{"mtagd.socket", "127.0.0.1:0", "--tls", "off", `socket "mtagd.socket" of systemd: the name is unknown`},
		{"https", "127.0.0.1:0", "--tls", "off", `socket "https" of systemd: HTTPS is off`},
		{"admin", "127.0.0.1:0", "--admin", "off", `socket "admin" of systemd: the admin pages are off`},
		{"admin", "0.0.0.0:0", "--admin", "127.0.0.1:0", "without --admin-token, the admin pages are served at loopback addresses only"},
	} {
		f := newFakeSystemd(t)
		f.open(c.name, c.address)
		out, err := f.fail(c.flag, c.value)
		if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != exitUsage || !strings.Contains(out, c.says) {
			t.Errorf("socket %s with %s %s: %v: %s", c.name, c.flag, c.value, err, out)
		}
	}
	f := newFakeSystemd(t)
	f.open("http", "127.0.0.1:0")
	f.open("http", "127.0.0.1:0")
	if out, _ := f.fail(); !strings.Contains(out, "the name is given twice") {
		t.Errorf("two sockets with one name: %s", out)
	}
}

// Restarts under load refuse no connection, and lose no request: while no process runs, connections wait in the socket.
func TestRestartRefusesNoConnection(t *testing.T) {
	f := newFakeSystemd(t)
	f.open("http", "127.0.0.1:0")
	f.open("admin", "127.0.0.1:0")
	b := &taggedService{t: t, data: f.data, client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: startTimeout}}
	b.service = f.start()
	b.addTag()

	const senders, restarts = 8, 4
	var accepted atomic.Int64
	address := b.service   // of all services to come
	send := func() error { // on a new connection
		body := fmt.Sprintf(`{"event":"PageView","muid":"u-%d"}`, accepted.Load())
		a, err := address.do(b.client, request{host: tagHost, method: "POST", path: "/mark/" + b.tag, body: body})
		if err == nil && a.status != http.StatusCreated {
			err = fmt.Errorf("%d %s", a.status, a.body)
		}
		if err == nil {
			accepted.Add(1)
		}
		return err
	}
	var running sync.WaitGroup
	var stop atomic.Bool
	for range senders {
		running.Go(func() {
			for !stop.Load() {
				if err := send(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range restarts {
		for before := accepted.Load(); accepted.Load() < before+50 && !t.Failed(); time.Sleep(time.Millisecond) {
		}
		if err := b.service.stop(); err != nil {
			t.Error(err)
		}
		waiting := make(chan error, 1)
		conn, err := net.Dial("tcp", b.service.http) // while no process runs
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer conn.Close()
			_, err := fmt.Fprintf(conn, "GET /health HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", tagHost)
			var answer bytes.Buffer
			if err == nil {
				_, err = answer.ReadFrom(conn)
			}
			if err == nil && !strings.HasPrefix(answer.String(), "HTTP/1.1 200 ") {
				err = errors.New(answer.String())
			}
			waiting <- err
		}()
		b.service = f.start()
		if err := <-waiting; err != nil {
			t.Errorf("a request that came while no process ran: %v", err)
		}
	}
	stop.Store(true)
	running.Wait()
	if _, total := b.muids(); int64(total) != accepted.Load() {
		t.Errorf("%d events are listed, %d got 201", total, accepted.Load())
	}
}

// The watchdog's pings go on while the disk is full or slow, because a restart would not help. They stop when a restart
// helps or Ready hangs, but not within minUptime: a restart that does not help is not repeated all the time.
func TestWatchdog(t *testing.T) {
	const timeout = time.Minute
	for _, c := range []struct {
		name  string
		ready func() error
		pings bool
		says  string
	}{
		{"ready", func() error { return nil }, true, "STATUS=events are accepted"},
		{"disk full", func() error { return errors.New("the disk\nis full") }, true, "STATUS=no events are accepted: the disk; is full"},
		{"index failed", func() error { return fmt.Errorf("%w: the index failed", store.ErrNeedsRestart) }, false,
			"STATUS=no events are accepted: a restart is needed: the index failed"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			sent := map[string]int{}
			w := &watchdog{timeout: timeout, ready: c.ready, send: func(state string) {
				mu.Lock()
				defer mu.Unlock()
				sent[state]++
			}}
			pingsIn := func(d time.Duration) int {
				mu.Lock()
				before := sent["WATCHDOG=1"]
				mu.Unlock()
				time.Sleep(d)
				synctest.Wait()
				mu.Lock()
				defer mu.Unlock()
				return sent["WATCHDOG=1"] - before
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go w.watch(ctx)
			if pingsIn(minUptime-time.Second) < int(minUptime/timeout) {
				t.Errorf("%s: no pings in the first minutes: %v", c.name, sent)
			}
			pingsIn(timeout)
			if got := pingsIn(timeout); (got > 0) != c.pings {
				t.Errorf("%s: %d pings in a minute", c.name, got)
			}
			if sent[c.says] != 1 {
				t.Errorf("%s: sent %v, want %s once", c.name, sent, c.says)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		hangs := func() error { <-ctx.Done(); return nil }
		go (&watchdog{timeout: timeout, ready: hangs, send: func(state string) { t.Errorf("sent %s while Ready hangs", state) }}).watch(ctx)
		time.Sleep(time.Hour)
		cancel()
		synctest.Wait()
	})
}
