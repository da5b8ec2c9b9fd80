package sdk_test

import (
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"mtagd/store/testenv"
)

// proxyExample makes a path of a site a proxy for the tag host.
const proxyExample = "../../deploy/first-party/nginx.conf"

// startNginx starts nginx with the example of the guide, as the web server of a shop. It passes requests for /t/ on to
// the tag host of the gate, over TLS, and all others to the pages of the shop. The result is the URL of a host of the shop.
func (w *world) startNginx(host string) string {
	w.Helper()
	nginx := testenv.Program(w, "nginx")
	dir := w.TempDir()
	listener := listen(w)
	defer listener.Close()
	socket, err := listener.(*net.TCPListener).File()
	if err != nil {
		w.Fatal(err)
	}
	defer socket.Close()
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, []byte(strings.Replace(w.nginxConfig(dir, listener.Addr().String()), "rate=50r/s", "rate=1r/s", 1)), 0o600); err != nil {
		w.Fatal(err)
	}
	cmd := exec.Command(nginx, "-p", dir, "-e", "stderr", "-c", config)
	// nginx takes over a socket that is listening already, as at an update of its program. Requests wait in it until nginx
	// has started.
	cmd.ExtraFiles = []*os.File{socket}
	cmd.Env = append(os.Environ(), "NGINX=3;")
	var log strings.Builder
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM) // ends the worker process too; fails only when nginx has already ended
		cmd.Wait()
		if w.Failed() {
			w.Logf("nginx: %s", log.String())
		}
	})
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	return "http://" + host + ":" + port
}

// nginxConfig returns the example of the guide, with the addresses of this test.
func (w *world) nginxConfig(dir, listen string) string {
	w.Helper()
	example, err := os.ReadFile(proxyExample)
	if err != nil {
		w.Fatal(err)
	}
	common, location, split := strings.Cut(string(example), "# in the site's server { … }\n")
	if !split {
		w.Fatalf("%s has no part for the site's server", proxyExample)
	}
	ca := filepath.Join(dir, "ca.pem")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.gate.tls.Certificate().Raw})
	if err := os.WriteFile(ca, certificate, 0o600); err != nil {
		w.Fatal(err)
	}
	names := strings.NewReplacer(
		"server tags.example.com:443", "server "+w.gate.tls.Listener.Addr().String(),
		"Host tags.example.com", "Host "+strings.TrimPrefix(w.gate.url(tagHost), "http://"),
		"proxy_ssl_name tags.example.com", "proxy_ssl_name example.com", // the name in the certificate of httptest
		"/etc/ssl/certs/ca-certificates.crt", ca)
	return names.Replace(fmt.Sprintf(`
		daemon off;
		user root; # the owner of the directory, when nginx runs as root; else it is ignored
		pid nginx.pid;
		events {}
		http {
			access_log off;
			client_body_temp_path body;
			proxy_temp_path proxy;
			fastcgi_temp_path fastcgi;
			uwsgi_temp_path uwsgi;
			scgi_temp_path scgi;
			%s
			server {
				listen %s;
				%s
				location / {
					proxy_pass %s;
					proxy_set_header Host $http_host;
				}
			}
		}`, common, listen, location, w.gate.server.URL))
}

// daysLeft returns in how many days the muid's cookie expires.
func (w *world) daysLeft() int {
	w.Helper()
	return int(time.Until(time.Unix(int64(w.cookie("_muid").Expires), 0)).Hours() / 24)
}

// The tag host is of another site than the shop. Through the shop's own nginx it sets the shop's cookie all the same.
func TestTheServiceSetsTheCookieThroughAProxyOfTheSite(t *testing.T) {
	w := newWorld(t)
	w.page("/", "")
	tab := w.tab()
	tab.goTo(w.startNginx(otherHost) + "/")
	tab.do(`
		document.cookie = '_muid=m1;path=/;domain=other.test;max-age=600';
		document.cookie = 'session=of-the-shop;path=/';
	`)
	answer := tab.get(fmt.Sprintf(`fetch('/t/mark/%s?renew=1', {
		method: 'POST', body: '{"muid":"m1","event":"Lead"}', headers: { Authorization: 'Basic b2YtdGhlLXNob3A=' },
	}).then((r) => r.status + ' ' + r.headers.get('mtag'))`, w.tag))
	if answer != "201 1" {
		t.Fatalf("status and Mtag: %s", answer)
	}
	if muid := w.want("Lead")[0].MUID; muid != "m1" {
		t.Errorf("recorded for %q", muid)
	}
	if c := w.cookie("_muid"); c.Value != "m1" || c.Domain != ".other.test" || w.daysLeft() != 399 {
		t.Errorf("cookie %+v, %d days", c, w.daysLeft())
	}
	got := w.gate.seen()[0].header
	if got.Get("Cookie") != "_muid=m1" || got.Get("Authorization") != "" {
		t.Errorf("the proxy has passed on %v", got)
	}
}

// The tag is installed at a path of the shop, and all that it sends and loads goes through the proxy.
func TestTheTagAtAPathOfTheSite(t *testing.T) {
	w := newWorld(t)
	site := w.startNginx(otherHost)
	w.page("/without-tag", "")
	w.page("/", strings.ReplaceAll(w.snippet(true), w.gate.url(tagHost), site+"/t"))
	tab := w.tab()
	tab.goTo(site + "/without-tag")
	tab.do(`document.cookie = '_muid=from-before;path=/;domain=other.test;max-age=600'`)
	tab.goTo(site + "/")
	tab.do(`mtag('identify', { email: 'ann@example.com' })`)
	if muid := w.want("PageView")[0].MUID; muid != "from-before" {
		t.Errorf("recorded for %q", muid)
	}
	tab.wantNothingStored()
	w.wait("the cookie to be renewed", func() bool { return w.daysLeft() >= 399 })
	for _, r := range w.gate.seen() {
		if r.header.Get("Cookie") != "_muid=from-before" || r.path != "/mark/"+w.tag && r.path != "/id/"+w.tag {
			t.Errorf("%v with the cookies %q", r, r.header.Get("Cookie"))
		}
	}
}

// A visitor without the cookie gets none from the service, and nginx sends no empty header.
func TestThroughAProxyAnEventWithoutACookie(t *testing.T) {
	w := newWorld(t)
	w.page("/", "")
	tab := w.tab()
	tab.goTo(w.startNginx(otherHost) + "/")
	tab.do(`document.cookie = 'session=of-the-shop;path=/'`)
	tab.get(fmt.Sprintf(`fetch('/t/mark/%s?renew=1', { method: 'POST', body: '{"muid":"m1","event":"Lead"}' })`, w.tag))
	w.want("Lead")
	if got, sent := w.gate.seen()[0].header["Cookie"]; sent {
		t.Errorf("the proxy has passed on %q", got)
	}
	if jar := w.cookies(); len(jar) != 1 || jar[0].Name != "session" {
		t.Errorf("cookies %v", jar)
	}
}

// A cookie that the shop's server has set for its own host only is sent besides the tag's. The service must see both, and
// then renews none: it cannot know which is the tag's.
func TestTheProxyPassesOnCookiesThatDiffer(t *testing.T) {
	w := newWorld(t)
	url := w.startNginx("127.0.0.1") + "/t/mark/" + w.tag + "?renew=1"
	for i, c := range []struct{ sent, passedOn, renewed string }{
		{"a=1; _muid=m1; b=2", "_muid=m1", "_muid=m1"},
		{"_muid=of-the-shop; a=1; _muid=m1", "_muid=of-the-shop; _muid=m1", ""},
		{"a=1; _muid=m1; _muid=m2; _muid=of-the-shop; b=2", "_muid=m1; _muid=of-the-shop", ""},
		{"_muid=m1; _muid=m1", "_muid=m1; _muid=m1", "_muid=m1"},
		{"x_muid=m1; a=_muid=m2; _muid=m3", "_muid=m3", "_muid=m3"},
		{"a=1; x_muid=m1; _muid=", "", ""},
	} {
		req, err := http.NewRequest(http.MethodPost, url, strings.NewReader(`{"muid":"m1","event":"Lead"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Cookie", c.sent)
		req.Header.Set("Origin", "https://"+otherHost)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := w.gate.seen()[i].header.Get("Cookie"); got != c.passedOn {
			t.Errorf("of %q the proxy has passed on %q, want %q", c.sent, got, c.passedOn)
		}
		renewed, _, _ := strings.Cut(resp.Header.Get("Set-Cookie"), ";")
		if resp.StatusCode != http.StatusCreated || renewed != c.renewed {
			t.Errorf("with %q: %s, Set-Cookie %q, want %q", c.sent, resp.Status, renewed, c.renewed)
		}
	}
}

// The proxy limits each visitor, because the service sees all of them as one.
// The rate is lower than in the guide, so that a slow machine exceeds it too; the burst is the guide's.
func TestTheProxyLimitsAVisitor(t *testing.T) {
	w := newWorld(t)
	url := w.startNginx("127.0.0.1") + "/t/mark/" + w.tag
	for range 2000 {
		resp, err := http.Post(url, "text/plain", strings.NewReader(`{"muid":"m1","event":"Lead"}`))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode == http.StatusTooManyRequests {
			return
		}
	}
	t.Error("2,000 requests at once were passed on")
}
