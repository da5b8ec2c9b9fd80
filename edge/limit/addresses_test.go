package limit

import (
	"fmt"
	"net/netip"
	"testing"
)

func TestAnIPv4AddressHasItsOwnLimit(t *testing.T) {
	a := NewAddresses(NewBuckets(), Rate{PerSecond: 1, Burst: 2})
	for i := range 300 {
		address := netip.AddrFrom4([4]byte{192, 0, byte(i / 256), byte(i)})
		for n, refused := range []bool{false, false, true} {
			if got := a.Take(address, 1, start) > 0; got != refused {
				t.Fatalf("request %d of %v is refused: %v, want %v", n, address, got, refused)
			}
		}
	}
}

// Whoever has a /48 has 65,536 networks of /64.
func TestTheNetworksOfASiteShareALimit(t *testing.T) {
	a := NewAddresses(NewBuckets(), Rate{PerSecond: 1, Burst: 2})
	taken := 0
	for i := range 100 {
		if a.Take(netip.MustParseAddr(fmt.Sprintf("2001:db8:1:%x::", i)), 1, start) == 0 {
			taken++
		}
	}
	if taken != 2*networkShare {
		t.Errorf("a /48 took %d tokens, want %d", taken, 2*networkShare)
	}
	if a.Take(netip.MustParseAddr("2001:db8:2::"), 1, start) > 0 {
		t.Error("another /48 is refused")
	}
}

func TestWithoutLimitEveryAddressMayTake(t *testing.T) {
	var a *Addresses
	if a.Take(netip.MustParseAddr("192.0.2.1"), 1<<40, start) > 0 {
		t.Error("an address is refused although there is no limit")
	}
	b := NewAddresses(NewBuckets(), Rate{PerSecond: 1, Burst: 1})
	if b.Take(netip.Addr{}, 1, start) > 0 {
		t.Error("the address of a connection without one is refused at once")
	}
}
