package main

import (
	"cmp"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"
)

// If the default admin address is taken, the service runs without admin pages. If an address that --admin names is
// taken, it does not start.
func TestAdminAddressTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	quiet := slog.New(slog.DiscardHandler)
	admin := adminAddress{Address: taken.Addr().String(), Optional: true}
	if l, err := admin.listen(quiet); l != nil || err != nil {
		t.Errorf("with the default address taken: %v, %v", l, err)
	}
	admin.Optional = false
	if l, err := admin.listen(quiet); l != nil || err == nil {
		t.Errorf("with the address of --admin taken: %v, %v", l, err)
	}
}

// A page in a browser on the server's machine cannot read the admin pages through a name of its own that leads to a
// loopback address.
func TestAdminPagesAreServedAtLoopbackHostsOnly(t *testing.T) {
	handler := adminHandler(newMetrics(), func() error { return nil })
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

func TestPprofShowsNoSecretOfTheCommandLine(t *testing.T) {
	defer func(args []string) { os.Args = args }(os.Args)
	os.Args = []string{"mtagd", "serve", "--acme-eab-hmac-key", "SECRET", "--acme-eab-hmac-key=SECRET", "--http", ":80", "--acme-eab-hmac-key"}
	r := httptest.NewRequest("GET", "/debug/pprof/cmdline", nil)
	r.Host = "localhost"
	w := httptest.NewRecorder()
	adminHandler(newMetrics(), func() error { return nil }).ServeHTTP(w, r)
	body, err := io.ReadAll(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	want := "mtagd serve --acme-eab-hmac-key (secret) --acme-eab-hmac-key=(secret) --http :80 --acme-eab-hmac-key"
	if got := strings.ReplaceAll(string(body), "\x00", " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A flag whose help calls it a secret is one of secretFlags, so that the admin pages do not show it.
func TestSecretFlagsAreKnown(t *testing.T) {
	var secret []string
	for _, command := range []reflect.Type{reflect.TypeFor[commandLine](), reflect.TypeFor[serveCommand]()} {
		for _, field := range reflect.VisibleFields(command) {
			if strings.Contains(field.Tag.Get("help"), "secret") {
				secret = append(secret, "--"+cmp.Or(field.Tag.Get("name"), strings.ToLower(field.Name)))
			}
		}
	}
	if !reflect.DeepEqual(secret, secretFlags) {
		t.Errorf("secretFlags are %v, but the help calls %v secret", secretFlags, secret)
	}
}
