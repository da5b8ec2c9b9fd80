package edge

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pires/go-proxyproto"

	"mtagd/edge/tag/tagtest"
)

// withTLS gives a server one certificate for every name except "refused.test".
func withTLS(t *testing.T) func(*Config) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return func(cfg *Config) {
		cfg.TLS = &tls.Config{
			NextProtos: []string{"http/1.1", "acme-tls/1"},
			GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
				if hello.ServerName == "refused.test" {
					return nil, errors.New("refused")
				}
				return &certificate, nil
			},
		}
		cfg.Challenge = func(_ context.Context, host, path string) (string, bool) {
			return "the answer", host == clientHost && path == challengePath+"token"
		}
	}
}

// listen opens one more listener for the world's server.
func (w *world) listen(serve func(net.Listener) error) (address string) {
	w.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- serve(ln) }()
	w.Cleanup(func() {
		w.shutdown()
		if err := <-served; err != nil {
			w.Errorf("serving: %v", err)
		}
	})
	return ln.Addr().String()
}

// dialTLS does a handshake with a server name.
func (w *world) dialTLS(address, serverName string, protocols ...string) (*tls.Conn, error) {
	w.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		w.Fatal(err)
	}
	secure := tls.Client(c, &tls.Config{ServerName: serverName, InsecureSkipVerify: true, NextProtos: protocols})
	return secure, secure.Handshake()
}

// secure begins TLS on a connection.
func (w *world) secure(c net.Conn, serverName string) *tls.Conn {
	return tls.Client(c, &tls.Config{ServerName: serverName, InsecureSkipVerify: true})
}

// ask sends one request on a connection and reads the answer.
func ask(t *testing.T, c net.Conn, method, host, path, body string) *http.Response {
	t.Helper()
	if _, err := fmt.Fprintf(c, "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s", method, path, host, len(body), body); err != nil {
		t.Fatal(err)
	}
	return readReply(t, bufio.NewReader(c))
}

func TestATLSConnectionServesOnlyItsOwnHost(t *testing.T) {
	w := newWorld(t, withTLS(t))
	address := w.listen(w.server.ServeTLS)
	for _, c := range []struct {
		serverName, host string
		want             int
	}{
		{clientHost, clientHost, 200},
		{strings.ToUpper(clientHost), clientHost, 200},
		{clientHost, clientHost + ":443", 200},
		{clientHost, w.ServerSide.Host, 421},
		{w.ServerSide.Host, w.ServerSide.Host, 200},
		{w.ServerSide.Host, baseHost, 421},
		{"", clientHost, 421},
	} {
		conn, err := w.dialTLS(address, c.serverName)
		if err != nil {
			t.Fatal(err)
		}
		if resp := ask(t, conn, "GET", c.host, "/health", ""); resp.StatusCode != c.want {
			t.Errorf("%s on a connection to %q: got %s, want %d", c.host, c.serverName, resp.Status, c.want)
		}
	}
}

func TestTLSKeepsAConnectionForManyEvents(t *testing.T) {
	w := newWorld(t, withTLS(t))
	conn, err := w.dialTLS(w.listen(w.server.ServeTLS), clientHost, "http/1.1")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if resp := ask(t, conn, "POST", clientHost, "/mark/"+string(w.Client.ID), event); resp.StatusCode != 201 {
			t.Errorf("got %s, want 201", resp.Status)
		}
	}
	if n := len(w.Events(t)); n != 3 {
		t.Errorf("recorded %d events, want 3", n)
	}
}

// The client of an oversized body sees its 413, not a broken connection: with TLS and the PROXY protocol too.
func TestAnswerBeforeTheBodyArrivesOverTLS(t *testing.T) {
	w := newWorld(t, withTLS(t), func(cfg *Config) { cfg.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} })
	address := w.listen(w.server.ServeTLS)
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "PROXY TCP4 192.0.2.7 192.0.2.1 4000 443\r\n"); err != nil {
		t.Fatal(err)
	}
	secure := tls.Client(c, &tls.Config{ServerName: clientHost, InsecureSkipVerify: true})
	const size = 4 << 20
	fmt.Fprintf(secure, "POST /mark/%s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n", w.Client.ID, clientHost, size)
	if _, err := io.CopyN(secure, zeros{}, size); err != nil {
		t.Fatalf("the body could not be sent: %v", err)
	}
	if resp := readReply(t, bufio.NewReader(secure)); resp.StatusCode != 413 {
		t.Errorf("got %s, want 413", resp.Status)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func TestFailedAndChallengeHandshakesAreNotServed(t *testing.T) {
	w := newWorld(t, withTLS(t))
	address := w.listen(w.server.ServeTLS)
	if _, err := w.dialTLS(address, "refused.test"); err == nil {
		t.Error("a refused handshake succeeded")
	}
	challenge, err := w.dialTLS(address, clientHost, "acme-tls/1")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := challenge.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection of a challenge was not closed: %v", err)
	}
	if conn, err := w.dialTLS(address, clientHost); err != nil || ask(t, conn, "GET", clientHost, "/health", "").StatusCode != 200 {
		t.Errorf("after these handshakes, the next connection is not served: %v", err)
	}
}

func TestHandshakesAreLimitedPerClient(t *testing.T) {
	w := newWorld(t, withTLS(t), func(cfg *Config) {
		cfg.HandshakesPerIP = 2
		cfg.TrustedProxies = []netip.Prefix{netip.MustParsePrefix("127.0.0.1/32")}
	})
	address := w.listen(w.server.ServeTLS)
	// begin connects for a client that sends nothing but the proxy's header.
	begin := func(client string) net.Conn {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprintf(c, "PROXY TCP4 %s 192.0.2.1 4000 443\r\n", client)
		return c
	}
	idle := []net.Conn{begin("192.0.2.7"), begin("192.0.2.7")}
	// A third handshake is refused as soon as the server has counted both.
	for deadline := time.Now().Add(time.Minute); w.counted()["mtagd_tls_handshakes_total limited"] == 0; {
		if time.Now().After(deadline) {
			t.Fatal("a third handshake is never refused")
		}
		third := begin("192.0.2.7")
		if err := third.SetDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		_, _ = third.Read(make([]byte, 1)) // ends when the server closes, or at the deadline
		third.Close()
	}
	other := tls.Client(begin("192.0.2.8"), &tls.Config{ServerName: clientHost, InsecureSkipVerify: true})
	if err := other.Handshake(); err != nil {
		t.Errorf("another client: %v", err)
	}
	for _, c := range idle {
		c.Close()
	}
	for deadline := time.Now().Add(time.Minute); ; {
		again := tls.Client(begin("192.0.2.7"), &tls.Config{ServerName: clientHost, InsecureSkipVerify: true})
		if again.Handshake() == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a client whose handshakes have ended is still refused")
		}
	}
}

// A handshake and a CA's question may wait for what another node does. Anyone can imitate a CA, so these too make room for
// new connections.
func TestAChallengeThatWaitsMakesRoom(t *testing.T) {
	ended := make(chan error)
	w := newTunedWorld(t, func(s *Server) { s.open.limit = 1 }, withTLS(t), func(cfg *Config) {
		cfg.TLS.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			ended <- nil
			<-hello.Context().Done()
			ended <- hello.Context().Err()
			return nil, hello.Context().Err()
		}
		cfg.Challenge = func(ctx context.Context, _, _ string) (string, bool) {
			ended <- nil
			select {
			case <-ctx.Done():
			case <-time.After(handshakeTimeout):
			}
			ended <- ctx.Err()
			return "", false
		}
	})
	secure, plain := w.listen(w.server.ServeTLS), w.listen(w.server.ServePlain)
	begin := func(address string) {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if address == secure {
			go w.secure(c, clientHost).Handshake()
		} else if _, err := fmt.Fprintf(c, "GET %sx HTTP/1.1\r\nHost: %s\r\n\r\n", challengePath, clientHost); err != nil {
			t.Fatal(err)
		}
		<-ended
	}
	for _, address := range []string{secure, plain} {
		begin(address)
		served := make(chan bool)
		go func() { served <- health(w.dialFrom("127.0.0.4")) }()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("what waits at %s ended with %v, not for the new connection", address, err)
		}
		if !<-served {
			t.Error("the new connection is not served")
		}
	}
}

// A handshake goes on when the server begins to stop, and the request behind it is answered.
func TestAHandshakeGoesOnInAStop(t *testing.T) {
	begun, goOn := make(chan bool), make(chan bool)
	w := newWorld(t, withTLS(t), func(cfg *Config) {
		cfg.TLS.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			begun <- true
			<-goOn
			return nil, hello.Context().Err()
		}
	})
	c, err := net.Dial("tcp", w.listen(w.server.ServeTLS))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	served := make(chan bool)
	go func() { served <- health(w.secure(c, clientHost)) }()
	<-begun
	w.server.open.stop()
	close(goOn)
	if !<-served {
		t.Error("the connection is not served")
	}
}

func TestHSTSIsForTheBaseHostOverTLS(t *testing.T) {
	w := newWorld(t, withTLS(t), func(cfg *Config) { cfg.HSTS = true })
	address := w.listen(w.server.ServeTLS)
	for host, want := range map[string]string{baseHost: "max-age=31536000", clientHost: ""} {
		conn, err := w.dialTLS(address, host)
		if err != nil {
			t.Fatal(err)
		}
		if got := ask(t, conn, "GET", host, "/health", "").Header.Get("Strict-Transport-Security"); got != want {
			t.Errorf("%s: got %q, want %q", host, got, want)
		}
	}
	if got := w.do("GET", baseHost, "/v1/x", "").Header.Get("Strict-Transport-Security"); got != "" {
		t.Errorf("over plain HTTP: got %q, want none", got)
	}
}

func TestPlainHTTP(t *testing.T) {
	w := newWorld(t, withTLS(t))
	w.addr = w.listen(w.server.ServePlain)
	for _, c := range []struct {
		host, target string
		status       int
		location     string // with 200 the body
	}{
		{baseHost, "/v1/partners/merchant?page=2", 308, "https://" + baseHost + "/v1/partners/merchant?page=2"},
		{clientHost, "/mark/x", 308, "https://" + clientHost + "/mark/x"},
		{clientHost + ":80", "/mark/x?", 308, "https://" + clientHost + "/mark/x?"},
		{w.ServerSide.Host, "//elsewhere.test/", 308, "https://" + w.ServerSide.Host + "//elsewhere.test/"},
		{tagtest.TrackingHost, "/", 308, "https://" + tagtest.TrackingHost + "/"},
		{clientHost, "http://" + clientHost + "/script", 308, "https://" + clientHost + "/script"},
		{clientHost, "@elsewhere.test/", 400, ""},
		{clientHost, "*", 400, ""},
		{"nobody.test", "/", 421, ""},
		{clientHost, challengePath + "token", 200, "the answer"},
		{clientHost, challengePath + "other", 404, ""},
		{baseHost, challengePath + "token", 404, ""},
	} {
		conn := w.dial()
		resp := ask(t, conn, "POST", c.host, c.target, event)
		conn.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		got := resp.Header.Get("Location")
		if c.status == 200 {
			got = string(body)
		}
		if resp.StatusCode != c.status || got != c.location {
			t.Errorf("%s %s: got %s %q, want %d %q", c.host, c.target, resp.Status, got, c.status, c.location)
		}
	}
	if n := len(w.Events(t)); n != 0 {
		t.Errorf("%d events were recorded, want none", n)
	}
}

// A key that was sent in clear may have been read by others. A redirect would make the mistake work.
func TestAKeyOverPlainHTTPIsRefused(t *testing.T) {
	w := newWorld(t, withTLS(t))
	w.addr = w.listen(w.server.ServePlain)
	r := w.do("GET", baseHost, "/v1/partners/merchant", "", "Authorization", "Bearer SECRET")
	r.Want(t, 403, "sent unencrypted")
	r.Want(t, 403, `"statusCode":403`)
	if r.Header.Get("Location") != "" {
		t.Errorf("redirected to %s", r.Header.Get("Location"))
	}
	w.do("POST", baseHost, "/v1/partners/merchant", batch, "Authorization", "Bearer SECRET").Want(t, 403, "revoke")
	w.do("GET", baseHost, "/v1/partners/merchant", "").Want(t, 308, "")
	w.do("GET", clientHost, "/script", "", "Authorization", "Basic x").Want(t, 308, "")

	// The same goes for a merchant's secret.
	w.do("POST", clientHost, "/mark/x", batch, "Authorization", "Bearer mts_SECRET").Want(t, 403, "sent unencrypted")
	w.shutdown()
	if strings.Contains(w.log.String(), "SECRET") {
		t.Errorf("the key is in the log: %s", w.log)
	}
}

func TestProxyProtocol(t *testing.T) {
	t.Parallel()
	header := proxyproto.HeaderProxyFromAddrs(2,
		&net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 4000}, &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 80})
	v2, err := header.Format()
	if err != nil {
		t.Fatal(err)
	}
	request := "GET /health HTTP/1.1\r\nHost: " + clientHost + "\r\nConnection: close\r\n\r\n"
	for _, c := range []struct {
		name, trusted, sent, want string
	}{
		{"version 1 from a trusted proxy", "127.0.0.0/8", "PROXY TCP4 192.0.2.7 192.0.2.1 4000 80\r\n" + request, "HTTP/1.1 200"},
		{"version 2 from a trusted proxy", "127.0.0.0/8", string(v2) + request, "HTTP/1.1 200"},
		{"a trusted proxy's health check", "127.0.0.0/8", "PROXY UNKNOWN\r\n" + request, "HTTP/1.1 200"},
		{"no header from a trusted proxy", "127.0.0.0/8", request, ""},
		{"no header from any other address", "192.0.2.0/24", request, "HTTP/1.1 200"},
		{"a header from any other address", "192.0.2.0/24", "PROXY TCP4 192.0.2.7 192.0.2.1 4000 80\r\n" + request, "HTTP/1.1 400"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, func(cfg *Config) { cfg.TrustedProxies = []netip.Prefix{netip.MustParsePrefix(c.trusted)} })
			if got := w.raw(c.sent, true); !strings.HasPrefix(got, c.want) || (c.want == "" && got != "") {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
