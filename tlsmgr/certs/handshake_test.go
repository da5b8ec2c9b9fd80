package certs

import (
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/tlsmgr/acmetest"
)

// sameSession is a client's cache that offers the last session to every host.
type sameSession struct{ last *tls.ClientSessionState }

func (c *sameSession) Get(string) (*tls.ClientSessionState, bool) { return c.last, c.last != nil }

func (c *sameSession) Put(_ string, s *tls.ClientSessionState) {
	if s != nil {
		c.last = s
	}
}

// connect does a handshake with the certificates, and reads until the server closes.
func (w *certWorld) connect(server, client *tls.Config) (tls.ConnectionState, error) {
	w.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.Fatal(err)
	}
	defer ln.Close()
	go serveHandshakes(tls.NewListener(ln, server))
	raw, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		w.Fatal(err)
	}
	defer raw.Close()
	if err := raw.SetDeadline(time.Now().Add(longEnough)); err != nil {
		w.Fatal(err)
	}
	client.InsecureSkipVerify = true
	c := tls.Client(raw, client)
	if err := c.Handshake(); err != nil {
		return tls.ConnectionState{}, err
	}
	_, err = io.Copy(io.Discard, c) // also reads the session tickets of TLS 1.3
	return c.ConnectionState(), err
}

func TestHandshakes(t *testing.T) {
	w := newCertWorld(t, acmetest.Options{})
	if _, err := w.engine.EnablePreverified(t.Context(), w.partner, w.trackingHost); err != nil {
		t.Fatal(err)
	}
	w.start()
	w.untilStatus(w.ownHost, store.CertificateValid)
	w.untilStatus(w.trackingHost, store.CertificateValid)
	config := w.certs.TLSConfig()

	for name, version := range map[string]uint16{"TLS 1.2": tls.VersionTLS12, "TLS 1.3": tls.VersionTLS13} {
		t.Run("an unknown name gets its alert over "+name, func(t *testing.T) {
			for _, host := range []string{"nobody.test", ""} {
				_, err := w.connect(config, &tls.Config{ServerName: host, MinVersion: version, MaxVersion: version})
				if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
					t.Errorf("%q: got %v, want the alert unrecognized name", host, err)
				}
			}
		})
		t.Run("a session resumes only at its own host over "+name, func(t *testing.T) {
			session := &sameSession{}
			for i, visit := range []struct {
				host    string
				resumes bool
			}{
				{w.ownHost, false}, {strings.ToUpper(w.ownHost), true}, {w.ownHost, true},
				{w.trackingHost, false}, {w.trackingHost, true}, {w.ownHost, false},
			} {
				state, err := w.connect(config, &tls.Config{ServerName: visit.host, MinVersion: version, MaxVersion: version, ClientSessionCache: session})
				if err != nil || state.DidResume != visit.resumes {
					t.Errorf("visit %d of %s: resumed %v, %v; want %v", i, visit.host, state.DidResume, err, visit.resumes)
				}
			}
		})
	}

	t.Run("TLS 1.2 has no CBC", func(t *testing.T) {
		for _, suite := range append(tls.CipherSuites(), tls.InsecureCipherSuites()...) {
			client := &tls.Config{ServerName: w.ownHost, MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{suite.ID}}
			if _, err := w.connect(config, client); err == nil && strings.Contains(suite.Name, "CBC") {
				t.Errorf("a handshake with %s succeeded", suite.Name)
			}
		}
		if _, err := w.connect(config, &tls.Config{ServerName: w.ownHost, MaxVersion: tls.VersionTLS12}); err != nil {
			t.Errorf("a handshake over TLS 1.2 failed: %v", err)
		}
	})
}
