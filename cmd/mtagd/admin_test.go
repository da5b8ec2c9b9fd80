package main

import (
	"log/slog"
	"net"
	"testing"
)

// If the default admin address is taken, the service runs without admin pages. If an address that --admin names is taken, it does not start.
func TestAdminAddressTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	quiet := slog.New(slog.DiscardHandler)
	admin := adminAddress{Address: taken.Addr().String(), Optional: true}
	if l, err := admin.listen(quiet); l != nil || err != nil {
		t.Errorf("the default address: %v, %v", l, err)
	}
	admin.Optional = false
	if l, err := admin.listen(quiet); l != nil || err == nil {
		t.Errorf("an address that was asked for: %v, %v", l, err)
	}
}
