package nodes

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"mtagd/store/postgres/conn"
)

// The life of a lease counts from before the request: when the answer comes too late, another node may have it.
func TestALeaseThatCameTooLateIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &lease{of: &Nodes{db: &conn.DB{Log: slog.New(slog.DiscardHandler)}}, name: "x"}
		l.held, l.giveUp = context.WithCancel(t.Context())
		began := time.Now()
		time.Sleep(leaseGiven - time.Second)
		l.keepRenewed(began)
		if held := time.Since(began); held != leaseGiven || l.held.Err() == nil {
			t.Errorf("the lease is held for %v, want %v", held, leaseGiven)
		}
	})
}
