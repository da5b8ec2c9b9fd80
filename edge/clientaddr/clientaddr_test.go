package clientaddr_test

import (
	"net"
	"net/netip"
	"testing"

	"mtagd/edge/clientaddr"
)

// textAddr is an address that is not a *net.TCPAddr.
type textAddr string

func (textAddr) Network() string  { return "tcp" }
func (a textAddr) String() string { return string(a) }

func TestOf(t *testing.T) {
	for _, c := range []struct{ address, client string }{
		{"192.0.2.7:4711", "192.0.2.7"},
		{"[::ffff:192.0.2.7]:4711", "192.0.2.7"},
		{"[2001:db8:1:2:3:4:5:6]:443", "2001:db8:1:2::"},
		{"[2001:db8:1:2:ffff::1]:443", "2001:db8:1:2::"},
		{"[2001:db8:1:3::1]:443", "2001:db8:1:3::"},
		{"[fe80::1%eth0]:443", "fe80::"},
	} {
		want := netip.MustParseAddr(c.client)
		if got := clientaddr.Of(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(c.address))); got != want {
			t.Errorf("TCP address %s is counted as %s, want %s", c.address, got, want)
		}
		if got := clientaddr.Of(textAddr(c.address)); got != want {
			t.Errorf("address %s is counted as %s, want %s", c.address, got, want)
		}
	}
	if got := clientaddr.Of(textAddr("@")); got.IsValid() {
		t.Errorf("an address without an IP is counted as %s", got)
	}
	tcp := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 1}
	if n := testing.AllocsPerRun(100, func() { _ = clientaddr.Of(tcp) }); n > 0 {
		t.Errorf("Of allocates %v times for a TCP address", n)
	}
}
