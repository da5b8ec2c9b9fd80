package main

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"
)

// The hourly recheck of DNS runs without TLS, too. It ends with the service: later it would use a closed engine.
func TestDaemonRechecksDNSWithoutTLS(t *testing.T) {
	t.Setenv("GOMAXPROCS", "2") // leave the threads and the memory limit of this process alone
	t.Setenv("GOMEMLIMIT", "1GiB")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	d := newDaemon(config{
		Data: t.TempDir(), HTTP: "127.0.0.1:0", Admin: adminConfig{Address: adminOff}, Log: slog.New(slog.DiscardHandler),
		BaseHost: baseHost, ClientTagHost: tagHost, CNAMETarget: cnameTarget, Resolvers: []string{"127.0.0.1:1"},
	})
	go func() { ended <- d.serveUntil(ctx) }()
	for deadline := time.Now().Add(startTimeout); !runs(".(*Recheck).run("); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Error("the recheck does not run")
			break
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if runs(".(*Recheck).run(") {
		t.Error("the recheck still runs")
	}
}

// runs reports whether a goroutine of this process is in a function.
func runs(function string) bool {
	stacks := make([]byte, 4<<20)
	return strings.Contains(string(stacks[:runtime.Stack(stacks, true)]), function)
}
