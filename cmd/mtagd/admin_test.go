package main

import (
	"log/slog"
	"net"
	"testing"
)

// If the default admin address is taken, the service runs without admin pages. If an address that --admin names is
// taken, it does not start.
func TestAdminAddressTaken(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	quiet := slog.New(slog.DiscardHandler)
	admin := adminAddress{Address: taken.Addr().String(), Optional: true}
	if l, err := admin.listen(quiet); l != nil || err != nil {
		t.Errorf("with the default address taken: %v, %v", l, err)
	}
	admin.Optional = false
	if l, err := admin.listen(quiet); l != nil || err == nil {
		t.Errorf("with the address of --admin taken: %v, %v", l, err)
	}
}
