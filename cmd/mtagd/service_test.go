package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// TestMain makes this test binary serve as mtagd, too: when the tests run the command "mtagd", it is the real program
// in its own process. As "mtagd-runner", it runs many commands (runner_test.go).
func TestMain(m *testing.M) {
	os.Setenv("GORACE", raceOptions)
	testscript.Main(m, map[string]func(){"mtagd": main, "mtagd-runner": runJobs})
}

// raceOptions are for processes under the race detector: they do not sleep for a second before they exit, and their memory
// comes in large pages.
const raceOptions = "atexit_sleep_ms=0 no_huge_pages_for_shadow=0"

// The hosts of a service under test.
const (
	baseHost    = "api.mtagd.test"
	tagHost     = "tags.mtagd.test"
	cnameTarget = "cname.mtagd.test"
)

// startTimeout limits the wait for a process to start or to end. Only a process that hangs should reach it.
const startTimeout = time.Minute

// service is a running "mtagd serve".
type service struct {
	cmd   *exec.Cmd
	http  string // host:port
	https string // host:port, with --tls acme
	admin string // host:port

	ended bool // it was stopped or killed

	mu   sync.Mutex
	log  strings.Builder // its standard error
	done chan struct{}   // closed at the end of the log, when the process has ended
}

// startService runs "mtagd serve" on free ports and waits until it is ready.
func startService(data, resolver string, flags ...string) (*service, error) {
	s, err := launchService(data, resolver, flags...)
	if err != nil {
		return nil, err
	}
	return s, s.waitReady()
}

// launchService runs "mtagd serve" on free ports and waits until it listens. The process inherits relaxed timers, so it need
// not execute itself again.
func launchService(data, resolver string, flags ...string) (*service, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if before, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err == nil { // without it, the process executes itself
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0)
		defer func() { _ = unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(before), 0, 0, 0) }()
	}
	return launch(exec.Command("mtagd", serveArgs(data, resolver, flags)...))
}

func serveArgs(data, resolver string, flags []string) []string {
	return append([]string{
		"serve", "--tls", "off", "--data", data,
		"--http", "127.0.0.1:0", "--admin", "127.0.0.1:0",
		"--base-host", baseHost, "--client-tag-host", tagHost, "--cname-target", cnameTarget,
		"--dns-resolver", resolver, "--log-format", "json",
	}, flags...)
}

// launch runs a command that is, or becomes, "mtagd serve", and waits until it listens.
func launch(cmd *exec.Cmd) (*service, error) {
	s := &service{cmd: cmd, done: make(chan struct{})}
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	// If this process ignores SIGHUP, as under nohup, so will its children. Handle the signal here: then they get the
	// default, because children do not inherit handlers.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	listening := make(chan struct{})
	go s.readLog(stderr, listening)
	select {
	case <-listening:
		return s, nil
	case <-s.done:
		return nil, fmt.Errorf("mtagd ended before it listened: %w: %s", s.cmd.Wait(), s.Log())
	case <-time.After(startTimeout):
		return nil, errors.Join(errors.New("mtagd does not listen"), s.cmd.Process.Kill())
	}
}

// readLog collects the log and reads the listening addresses from it.
func (s *service) readLog(stderr io.Reader, listening chan<- struct{}) {
	defer close(s.done)
	known := false // a service that goes on with a database keeps its addresses
	lines := bufio.NewScanner(stderr)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		s.mu.Lock()
		s.log.WriteString(lines.Text() + "\n")
		s.mu.Unlock()
		var line struct{ Msg, HTTP, HTTPS, Address string }
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue // the error that ends the process is a plain line
		}
		if known {
			continue
		}
		switch line.Msg {
		case "admin listening":
			s.admin = line.Address
		case "listening":
			s.http, s.https = line.HTTP, line.HTTPS
			known = true
			close(listening)
		}
	}
}

func (s *service) waitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		resp, err := http.Get("http://" + s.admin + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return errors.New("mtagd is not ready")
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Log returns what the service has written to standard error so far.
func (s *service) Log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// stop sends SIGTERM. It returns an error unless the service exits with 0.
func (s *service) stop() error { return s.stopBy(syscall.SIGTERM) }

func (s *service) stopBy(sig syscall.Signal) error {
	if err := s.end(sig); err != nil {
		return fmt.Errorf("%w: %s", err, s.Log())
	}
	return s.checkLog()
}

// kill sends SIGKILL. It returns an error if the service has ended in another way.
func (s *service) kill() error {
	err := s.end(syscall.SIGKILL)
	if _, killed := errors.AsType[*exec.ExitError](err); !killed {
		return fmt.Errorf("not killed: %w", err)
	}
	return s.checkLog()
}

func (s *service) end(sig os.Signal) error {
	if err := s.cmd.Process.Signal(sig); err != nil {
		return err
	}
	return s.waitEnd()
}

// waitEnd waits until the service has ended by itself or after a signal.
func (s *service) waitEnd() error {
	s.ended = true
	select {
	case <-s.done:
		return s.cmd.Wait()
	case <-time.After(startTimeout):
		return errors.Join(errors.New("mtagd has not ended"), s.cmd.Process.Kill())
	}
}

// waitLog waits until the log contains a text.
func (s *service) waitLog(text string) error {
	for deadline := time.Now().Add(startTimeout); !strings.Contains(s.Log(), text); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("not in the log: %s: %s", text, s.Log())
		}
	}
	return nil
}

// checkLog returns an error if the log contains a data race, a panic or an API key.
func (s *service) checkLog() error {
	for _, bad := range []string{"DATA RACE", "panic", "mtp_"} {
		if strings.Contains(s.Log(), bad) {
			return fmt.Errorf("%q in the log: %s", bad, s.Log())
		}
	}
	return nil
}

// answer is an HTTP response that was read to its end.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// request is an HTTP request to a service under test. Its host is only the Host header; it is not resolved.
type request struct {
	host, method, path, key, body string
	header                        http.Header
}

func (s *service) do(client *http.Client, r request) (answer, error) {
	req, err := http.NewRequest(r.method, "http://"+s.http+r.path, strings.NewReader(r.body))
	if err != nil {
		return answer{}, err
	}
	req.Host = r.host
	if r.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.key != "" {
		req.Header.Set("Authorization", "Bearer "+r.key)
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	resp, err := client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, body}, err
}

// newPartner creates a partner and a key with the operator commands.
func newPartner(data, name string) (id, key string, err error) {
	var partner struct{ PartnerID string }
	if err := runMtagd(&partner, "partner", "add", "--name", name, "--data", data); err != nil {
		return "", "", err
	}
	var issued struct{ APIKey string }
	err = runMtagd(&issued, "key", "issue", "--partner", partner.PartnerID, "--data", data)
	return partner.PartnerID, issued.APIKey, err
}
