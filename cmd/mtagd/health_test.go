package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

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
