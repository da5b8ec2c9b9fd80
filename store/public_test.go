package store

import (
	"net/netip"
	"testing"
)

func TestIsPublicAddress(t *testing.T) {
	for text, want := range map[string]bool{
		"8.8.8.8": true, "1.1.1.1": true, "2606:4700:4700::1111": true,
		"127.0.0.1": false, "127.8.8.8": false, "0.0.0.0": false, "10.0.0.1": false, "172.16.0.1": false, "172.31.255.255": false, "192.168.1.1": false,
		"169.254.169.254": false, "100.64.0.1": false, "100.100.100.200": false, "192.0.0.192": false, "198.18.0.1": false, "224.0.0.1": false,
		"240.0.0.1": false, "255.255.255.255": false, "192.0.2.1": false, "203.0.113.9": false,
		"::ffff:10.0.0.1": false, "::10.0.0.1": false, "2001:0:a00:1::1": false, "2001:4860:4860::8888": true, "0.1.2.3": false,
		"::1": false, "::": false, "::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false, "::ffff:8.8.8.8": true, "::127.0.0.1": false,
		"fe80::1": false, "fe80::1%eth0": false, "fc00::1": false, "fd00:ec2::254": false, "ff02::1": false, "64:ff9b::7f00:1": false,
		"2002:7f00:1::": false, "2001:db8::1": false, "2001::1": false, "fec0::1": false, "::ffff:0:7f00:1": false, "64:ff9b:1::7f00:1": false, "4000::1": false,
	} {
		if got := IsPublicAddress(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s is public: %v, want %v", text, got, want)
		}
	}
}
