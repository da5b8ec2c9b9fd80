package dns

import (
	"net/netip"
	"slices"
	"strings"
)

// reserved are IP ranges that are not public, besides those that the standard library knows. It includes the IPv6
// ranges of tunnels (Teredo, 6to4), where an address stands for any IPv4 address. allocated is the part of IPv6 that
// IANA has allocated; nothing else in IPv6 is public.
var (
	reserved  = prefixes("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "198.18.0.0/15", "240.0.0.0/4", "2001::/23", "2002::/16")
	allocated = netip.MustParsePrefix("2000::/3")
)

// isPublic reports whether an address is on the public internet. Others may be in the operator's network, and a
// stranger's zone must not make the service send packets there.
func isPublic(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsPrivate() && !contains(reserved, a) && (a.Is4() || allocated.Contains(a))
}

// cloudflare are Cloudflare's addresses, from https://www.cloudflare.com/ips/. Merchants often leave the proxy of their
// DNS provider on for the record; then the record shows the proxy's addresses. The list has hardly changed in years. If
// it is outdated, findings are only less specific: wrong_address instead of proxied.
var cloudflare = prefixes(
	"173.245.48.0/20", "103.21.244.0/22", "103.22.200.0/22", "103.31.4.0/22", "141.101.64.0/18",
	"108.162.192.0/18", "190.93.240.0/20", "188.114.96.0/20", "197.234.240.0/22", "198.41.128.0/17",
	"162.158.0.0/15", "104.16.0.0/13", "104.24.0.0/14", "172.64.0.0/13", "131.0.72.0/22",
	"2400:cb00::/32", "2606:4700::/32", "2803:f800::/32", "2405:b500::/32", "2405:8100::/32",
	"2a06:98c0::/29", "2c0f:f248::/32",
)

// isCloudflare reports whether all of the addresses are Cloudflare's.
func isCloudflare(addresses map[netip.Addr]bool) bool {
	for a := range addresses {
		if !contains(cloudflare, a) {
			return false
		}
	}
	return true
}

// cdnZones are zones that contain the names that content delivery networks give to their customers' sites.
var cdnZones = []string{
	"cdn.cloudflare.net.", "cloudfront.net.", "fastly.net.", "akamai.net.", "akamaiedge.net.",
	"edgekey.net.", "edgesuite.net.", "azureedge.net.", "azurefd.net.", "b-cdn.net.", "kxcdn.com.",
}

func isCDN(name string) bool {
	return slices.ContainsFunc(cdnZones, func(zone string) bool { return strings.HasSuffix(name, "."+zone) })
}

func isSubset(some, of map[netip.Addr]bool) bool {
	for a := range some {
		if !of[a] {
			return false
		}
	}
	return true
}

func prefixes(texts ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func contains(all []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(addr) })
}
