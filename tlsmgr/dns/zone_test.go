package dns

import (
	"net/netip"
	"testing"
)

func TestPublicAddresses(t *testing.T) {
	for address, public := range map[string]bool{
		"8.8.8.8":              true,
		"2606:4700:4700::1111": true,
		"2001:4860:4860::8888": true,
		"0.1.2.3":              false,
		"10.0.0.1":             false,
		"100.64.0.1":           false,
		"127.0.0.1":            false,
		"169.254.169.254":      false,
		"172.16.0.1":           false,
		"192.0.0.1":            false,
		"192.168.0.1":          false,
		"198.18.0.1":           false,
		"224.0.0.1":            false,
		"255.255.255.255":      false,
		"::":                   false,
		"::1":                  false,
		"fe80::1":              false,
		"fd00::1":              false,
		"fec0::1":              false, // site-local, the predecessor of fc00::/7
		"ff02::1":              false,
		"::10.0.0.1":           false, // IPv4-compatible (obsolete)
		"64:ff9b::a00:1":       false, // NAT64
		"2002:a00:1::1":        false, // 6to4
		"2001:0:a00:1::1":      false, // Teredo
	} {
		if isPublic(netip.MustParseAddr(address)) != public {
			t.Errorf("%s counts as public: %v", address, !public)
		}
	}
	if isPublic(addressOf(rr("ns. AAAA ::ffff:10.0.0.1"))) {
		t.Error("a private IPv4 address counts as public when it is mapped to IPv6")
	}
}
