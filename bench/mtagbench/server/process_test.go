package server

import (
	"strings"
	"testing"
	"time"
)

// If a server ends too early, the error has its last lines. A server that is ready can be measured and stopped.
func TestProcess(t *testing.T) {
	g := NewGroup(t.Context())
	p, err := g.start("sh", "-c", "echo no disk; exit 3")
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.findInOutput(func(string) string { return "" })
	if err == nil || !strings.Contains(err.Error(), "no disk") {
		t.Errorf("got %v", err)
	}

	p, err = g.start("sh", "-c", "echo ready >&2; exec sleep 60")
	if err != nil {
		t.Fatal(err)
	}
	if line, err := p.findInOutput(func(line string) string { return line }); err != nil || line != "ready" {
		t.Fatalf("got %q, %v", line, err)
	}
	if _, err := p.CPUTime(); err != nil {
		t.Error(err)
	}
	if _, err := p.DiskWrites(); err != nil {
		t.Error(err)
	}
	for p.takePeakMemory() == 0 { // until it was measured
		time.Sleep(time.Millisecond)
	}
	g.Stop()
}
