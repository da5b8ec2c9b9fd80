package main

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
	"testing"
)

// With nohup, a process outlives its terminal: it starts with SIGHUP ignored, and must leave it ignored.
func TestIgnoredHangup(t *testing.T) {
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("the tests themselves run with nohup")
	}
	if !slices.Contains(stopSignals(), os.Signal(syscall.SIGHUP)) {
		t.Error("SIGHUP does not stop the service")
	}
	signal.Ignore(syscall.SIGHUP)
	defer signal.Reset(syscall.SIGHUP)
	if slices.Contains(stopSignals(), os.Signal(syscall.SIGHUP)) {
		t.Error("an ignored SIGHUP stops the service")
	}
}

func TestEditDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{
		{"", "", 0}, {"", "TLS", 3}, {"TLS", "", 3}, {"TLS", "TLS", 0}, {"HTTP", "HTTPS", 1}, {"HTPTS", "HTTP", 2}, {"DATA", "TLS", 4},
	} {
		if got := editDistance(c.a, c.b); got != c.want {
			t.Errorf("from %q to %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
