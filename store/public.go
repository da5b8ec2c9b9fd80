package store

import (
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// IsPublicName reports whether a name's top-level domain is in the ICANN section of the public suffix list. The domains
// of RFC 6761 (test, example, invalid, localhost) are not. The name is in lower case, without a final dot.
func IsPublicName(name string) bool {
	topLevel := name[strings.LastIndexByte(name, '.')+1:]
	// Some top-level domains are in the list only with a wildcard, such as *.ck. So the question needs a name below it.
	_, icann := publicsuffix.PublicSuffix("name." + topLevel)
	return icann
}

// special are the networks that are not public, besides those that package netip knows (IANA's special-purpose registries):
// shared addresses, protocol assignments, documentation, benchmarks, reserved ones, and all of IPv6 outside of 2000::/3. They
// include addresses that embed an IPv4 address, to which a translator would forward.
var special = ParseNetworks("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24",
	"203.0.113.0/24", "240.0.0.0/4", "::/3", "4000::/2", "8000::/1", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20")

// IsPublicAddress reports whether an address is on the public internet. Others may be in the operator's network, and no
// stranger may make the service send something there, or learn what is there.
func IsPublicAddress(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return a.IsGlobalUnicast() && !a.IsPrivate() && !special.Contain(a)
}

// Networks are networks of IP addresses.
type Networks []netip.Prefix

// ParseNetworks reads networks that are written in the program. It panics if one is wrong.
func ParseNetworks(texts ...string) (all Networks) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

// Contain reports whether an address is in one of the networks.
func (n Networks) Contain(a netip.Addr) bool {
	return slices.ContainsFunc(n, func(p netip.Prefix) bool { return p.Contains(a) })
}
