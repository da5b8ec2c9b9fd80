package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/edge/limit"
)

// If the default admin address is taken, the service runs without admin pages. If an address that --admin names is
// taken, it does not start.
func TestAdminAddressTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, optional := range []bool{true, false} {
		d := newDaemon(config{serveCommand: serveCommand{Admin: taken.Addr().String()}, AdminOptional: optional, Log: slog.New(slog.DiscardHandler)})
		if err := d.acceptAdmins(t.Context()); (err == nil) != optional || len(d.listeners) > 0 {
			t.Errorf("with the address taken, optional %v: %v", optional, err)
		}
	}
}

var errImpaired = errors.New("a table is damaged")

// guardedPages are the admin pages of a service with this token, whose data is damaged, and that is not ready because of
// notReady.
func guardedPages(t *testing.T, token string, notReady error) http.Handler {
	t.Helper()
	metrics := prometheus.NewRegistry()
	refusals := limit.NewRefusals(slog.New(slog.DiscardHandler), metrics)
	ready := func() error { return notReady }
	return guardAdmin(adminPages(metrics, ready, func() error { return errImpaired }), ready, token, refusals)
}

// A page in a browser on the server's machine cannot read the admin pages through a name of its own that leads to a
// loopback address.
func TestAdminPagesAreServedAtLoopbackHostsOnly(t *testing.T) {
	handler := guardedPages(t, "", nil)
	for host, want := range map[string]int{
		"127.0.0.1:9090":           200,
		"127.1.2.3":                200,
		"[::1]:9090":               200,
		"[::ffff:127.0.0.1]:9090":  200,
		"localhost:9090":           200,
		"LOCALHOST":                200,
		"rebind.evil.test:9090":    421,
		"127.0.0.1.evil.test:9090": 421,
		"localhost.evil.test":      421,
		"192.0.2.1:9090":           421,
		"0.0.0.0:9090":             421,
		"":                         421,
	} {
		for _, path := range []string{"/metrics", "/readyz", "/debug/pprof/"} {
			r := httptest.NewRequest("GET", path, nil)
			r.Host = host
			w := httptest.NewRecorder()
			if handler.ServeHTTP(w, r); w.Code != want {
				t.Errorf("%s at %q: got %d, want %d", path, host, w.Code, want)
			}
		}
	}
}

const testToken = "0123456789abcdef0123456789abcdef"

// With a token, every page needs it, at any address. Only whether the service runs and is ready is known without it.
func TestAdminPagesNeedTheToken(t *testing.T) {
	reason := errors.New("the disk is full")
	for _, c := range []struct {
		path, authorization string
		notReady            error
		status              int
		body                string
	}{
		{"/metrics", "Bearer " + testToken, nil, 200, "# HELP"},
		{"/metrics", "bearer " + testToken, nil, 200, "# HELP"},
		{"/metrics", "", nil, 401, "--admin-token"},
		{"/metrics", "Bearer", nil, 401, ""},
		{"/metrics", "Bearer ", nil, 401, ""},
		{"/metrics", testToken, nil, 401, ""},
		{"/metrics", "Basic " + testToken, nil, 401, ""},
		{"/metrics", "Bearer " + testToken + "0", nil, 401, ""},
		{"/metrics", "Bearer " + testToken[1:], nil, 401, ""},
		{"/debug/pprof/", "Bearer " + testToken, nil, 200, "goroutine"},
		{"/debug/pprof/", "", nil, 401, ""},
		{"/debug/pprof/cmdline", "", nil, 401, ""},
		{"/healthz/../metrics", "", nil, 401, ""},
		{"/nothing", "", nil, 401, ""},
		{"/healthz", "", nil, 200, "ok\n"},
		{"/healthz", "", reason, 200, "ok\n"},
		{"/readyz", "", nil, 200, "ready\n"},
		{"/readyz", "Bearer " + testToken, nil, 200, "ready\nMtagdDamage: a table is damaged\n"},
		{"/readyz", "", reason, 503, "not ready\n"},
		{"/readyz", "Bearer " + testToken, reason, 503, "not ready\nMtagdNotReady: the disk is full\nMtagdDamage: a table is damaged\n"},
		{"/readyz", "Bearer wrong", reason, 401, ""},
	} {
		r := httptest.NewRequest("GET", "http://mtagd.example.com"+c.path, nil)
		if c.authorization != "" {
			r.Header.Set("Authorization", c.authorization)
		}
		w := httptest.NewRecorder()
		guardedPages(t, testToken, c.notReady).ServeHTTP(w, r)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.body) {
			t.Errorf("%s with %q: %d %s, want %d %s", c.path, c.authorization, w.Code, w.Body, c.status, c.body)
		}
		if challenge := w.Header().Get("WWW-Authenticate"); (challenge != "") != (w.Code == 401) {
			t.Errorf("%s with %q: %d with WWW-Authenticate %q", c.path, c.authorization, w.Code, challenge)
		}
	}
}

// Requests without the right token are counted.
func TestWrongAdminTokens(t *testing.T) {
	pages := guardedPages(t, testToken, nil)
	ask := func(token string) *httptest.ResponseRecorder {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		w := httptest.NewRecorder()
		pages.ServeHTTP(w, r)
		return w
	}
	for range 3 {
		if got := ask("guess"); got.Code != 401 {
			t.Errorf("a wrong token: %d", got.Code)
		}
	}
	if got := ask(testToken); got.Code != 200 || !strings.Contains(got.Body.String(), `mtagd_refused_total{cause="admin_token",tenant="none"} 3`) {
		t.Errorf("the right token: %d %s", got.Code, got.Body)
	}
}

// Without the token, nobody holds one of the few connections of the admin pages: neither by a body that does not come, nor
// by answers that are not read.
func TestConnectionsWithoutTheAdminTokenEndSoon(t *testing.T) {
	server := httptest.NewServer(guardedPages(t, testToken, nil))
	t.Cleanup(server.Close)
	for _, path := range []string{healthPage, readyPage, "/metrics"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			c, err := net.Dial("tcp", server.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: mtagd\r\nContent-Length: 1\r\n\r\n", path); err != nil {
				t.Fatal(err)
			}
			if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(c); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection stays open")
			}
		})
	}
}

func TestAdminAddressNeedsATokenUnlessItIsLoopback(t *testing.T) {
	for address, needs := range map[string]bool{
		"127.0.0.1:8095": false, "[::1]:8095": false, "localhost:8095": false, "off": false,
		":8095": true, "0.0.0.0:8095": true, "[::]:8095": true, "192.0.2.1:8095": true, "node1.example.com:8095": true,
	} {
		if err := checkAdmin(address, ""); (err != nil) != needs {
			t.Errorf("%s without a token: %v", address, err)
		}
		if err := checkAdmin(address, testToken); err != nil {
			t.Errorf("%s with a token: %v", address, err)
		}
	}
}

// A token is often from a file that ends with a line end. The error does not show a wrong one.
func TestAdminToken(t *testing.T) {
	for given, want := range map[string]string{"": "", testToken: testToken, testToken + "\n": testToken, testToken + "==": testToken + "=="} {
		if err := checkAdminToken(&given); err != nil || given != want {
			t.Errorf("%q: %v, want %q", given, err, want)
		}
	}
	for _, wrong := range []string{testToken[1:], "two words " + testToken, testToken + "\n" + testToken, strings.Repeat("a", 513), testToken + "é"} {
		if token := wrong; checkAdminToken(&token) == nil || strings.Contains(checkAdminToken(&token).Error(), wrong) {
			t.Errorf("%q: %v", wrong, checkAdminToken(&token))
		}
	}
}

func TestPprofShowsNoCommandLine(t *testing.T) {
	r := httptest.NewRequest("GET", "/debug/pprof/cmdline", nil)
	r.Host = "localhost"
	w := httptest.NewRecorder()
	guardedPages(t, "", nil).ServeHTTP(w, r)
	if w.Code != http.StatusNotFound {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A server that does not accept events is not healthy; the error says why.
func TestHealthOfAServerThatIsNotReady(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" {
			t.Errorf("requested %s, want /readyz", r.URL.Path)
		}
		http.Error(w, "disk full", http.StatusServiceUnavailable)
	}))
	defer server.Close()
	var stdout bytes.Buffer
	c := healthCommand{Admin: server.Listener.Addr().String()}
	err := c.Run(&process{ctx: t.Context(), stdout: &stdout})
	if err == nil || !strings.Contains(err.Error(), "disk full") || stdout.Len() > 0 {
		t.Errorf("%v, printed %q", err, stdout.String())
	}
}
