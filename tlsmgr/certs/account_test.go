package certs

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

func TestTheCAsIdentitiesComeFromItsDirectory(t *testing.T) {
	var asked atomic.Int32
	failing := true
	directory := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Content-Type", "application/json")
		if failing {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, `{"newNonce":"https://ca.example/nonce","newOrder":"https://ca.example/order","meta":{"caaIdentities":["ca.example","ca.test"]}}`)
	}))
	t.Cleanup(directory.Close)
	var log bytes.Buffer
	roots := x509.NewCertPool()
	roots.AddCert(directory.Certificate())
	c := New(Config{Dir: t.TempDir(), CA: directory.URL, Roots: roots, Log: slog.New(slog.NewTextHandler(&log, nil))})
	t.Cleanup(c.Stop)
	if got := c.CAAIdentities(t.Context()); got != nil || !strings.Contains(log.String(), "CAA records are not checked") {
		t.Errorf("from a directory that cannot be read: %q, and the log is %s", got, &log)
	}
	failing = false
	asked.Store(0)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	c.CAAIdentities(ended) // does not wait, but the read goes on
	for range 3 {
		if got := c.CAAIdentities(t.Context()); !slices.Equal(got, []string{"ca.example", "ca.test"}) {
			t.Errorf("got %q, and the log is %s", got, &log)
		}
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the directory was read %d times", n)
	}
}
