package main

import (
	"log/slog"
	"net"
	"testing"
)

// The default admin address is done without when another program has it; one that was asked for is not.
func TestAdminAddressTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	cfg := config{Admin: taken.Addr().String(), AdminOptional: true, Log: slog.New(slog.DiscardHandler)}
	if l, err := listenAdmin(cfg); l != nil || err != nil {
		t.Errorf("the default address: %v, %v", l, err)
	}
	cfg.AdminOptional = false
	if l, err := listenAdmin(cfg); l != nil || err == nil {
		t.Errorf("an address that was asked for: %v, %v", l, err)
	}
}
