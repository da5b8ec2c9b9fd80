package tlsmgr

import (
	"net/netip"
	"slices"
	"strings"
)

// A merchant whose DNS provider has a proxy of its own often leaves it on for the record, and then the
// world sees the proxy's addresses. These are Cloudflare's, as published at
// https://www.cloudflare.com/ips/; they have hardly changed in years, and an outdated list costs no more
// than a less helpful sentence.
var cloudflare = prefixes(
	"173.245.48.0/20", "103.21.244.0/22", "103.22.200.0/22", "103.31.4.0/22", "141.101.64.0/18",
	"108.162.192.0/18", "190.93.240.0/20", "188.114.96.0/20", "197.234.240.0/22", "198.41.128.0/17",
	"162.158.0.0/15", "104.16.0.0/13", "104.24.0.0/14", "172.64.0.0/13", "131.0.72.0/22",
	"2400:cb00::/32", "2606:4700::/32", "2803:f800::/32", "2405:b500::/32", "2405:8100::/32",
	"2a06:98c0::/29", "2c0f:f248::/32",
)

// cdnZones are the zones that content delivery networks have their customers' names in.
var cdnZones = []string{
	"cdn.cloudflare.net.", "cloudfront.net.", "fastly.net.", "akamai.net.", "akamaiedge.net.",
	"edgekey.net.", "edgesuite.net.", "azureedge.net.", "azurefd.net.", "b-cdn.net.", "kxcdn.com.",
}

func prefixes(written ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range written {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

func contains(all []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// isCloudflare reports whether all of the addresses belong to the proxy.
func isCloudflare(addresses map[netip.Addr]bool) bool {
	for a := range addresses {
		if !contains(cloudflare, a) {
			return false
		}
	}
	return true
}

func isCDN(name string) bool {
	return slices.ContainsFunc(cdnZones, func(zone string) bool { return strings.HasSuffix(name, "."+zone) })
}
