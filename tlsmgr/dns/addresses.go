package dns

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"mtagd/store"
)

// cloudflare are Cloudflare's addresses, from https://www.cloudflare.com/ips/. Merchants often leave the proxy of their
// DNS provider on for the record; then the record shows the proxy's addresses. The list has hardly changed in years. If
// it is outdated, findings are only less specific: wrong_address instead of proxied.
var cloudflare = store.ParseNetworks(
	"173.245.48.0/20", "103.21.244.0/22", "103.22.200.0/22", "103.31.4.0/22", "141.101.64.0/18",
	"108.162.192.0/18", "190.93.240.0/20", "188.114.96.0/20", "197.234.240.0/22", "198.41.128.0/17",
	"162.158.0.0/15", "104.16.0.0/13", "104.24.0.0/14", "172.64.0.0/13", "131.0.72.0/22",
	"2400:cb00::/32", "2606:4700::/32", "2803:f800::/32", "2405:b500::/32", "2405:8100::/32",
	"2a06:98c0::/29", "2c0f:f248::/32",
)

// cdnZones are zones that contain the names that content delivery networks give to their customers' sites.
var cdnZones = []string{
	"cdn.cloudflare.net.", "cloudfront.net.", "fastly.net.", "akamai.net.", "akamaiedge.net.",
	"edgekey.net.", "edgesuite.net.", "azureedge.net.", "azurefd.net.", "b-cdn.net.", "kxcdn.com.",
}

func isCDN(name string) bool {
	return slices.ContainsFunc(cdnZones, func(zone string) bool { return strings.HasSuffix(name, "."+zone) })
}

func every(addresses map[netip.Addr]bool, is func(netip.Addr) bool) bool {
	return !slices.ContainsFunc(slices.Collect(maps.Keys(addresses)), func(a netip.Addr) bool { return !is(a) })
}

// A resolver of the operator may know more than the public internet: names and addresses of the operator's own network.
// A partner can point a host at any name and read the finding. So findings must not say what lies behind a name in
// the operator's network, not even whether it exists. Unless Config.AllowPrivate is set:
//
//   - What only resolvers say about the names after the host's own is not described. Then the finding is the same
//     whether such a name exists or not. What the public name servers of its zone say is described, except that a name
//     does not exist: they are asked only if the resolvers have no internal zone for the name.
//   - Addresses that are not public are not described, nor are names below a top-level domain that is not public.
//
// The log has what is left out, at debug level.

// hide returns the observation s without what must not be described. The path is the one that led to a view.
func (c *chain) hide(path []string, seen view, s observation) observation {
	if s.verdict == store.DNSCorrect || s.verdict == store.DNSUnreachable {
		return s
	}
	if seen.by.recursive() && len(path) == 1 && len(seen.aliases) == 1 {
		path = []string{c.host, seen.aliases[0]} // the host's own record; the resolver alone knows what follows
	}
	switch {
	case slices.ContainsFunc(slices.Concat(path, seen.aliases), isInternal):
		return c.wrong("wrong_target", bare(c.host)+" does not lead to "+bare(c.target), "").instead(s)
	case seen.by.recursive() && len(path) > 1 && s.verdict == store.DNSPending:
		return observation{verdict: store.DNSPending, code: "timeout", namesWho: s.namesWho,
			fact: c.points(path, path[1]) + ", but where that leads is not known at the moment", fix: "try again in a few minutes"}.instead(s)
	case seen.by.recursive() && len(path) > 1:
		return c.elsewhere(path, "").instead(s)
	case seen.absent && len(seen.aliases) == 0 && len(path) > 1:
		return c.elsewhere(path, "").instead(s)
	case s.verdict == store.DNSWrong && len(seen.aliases) == 0 && !every(seen.addresses, store.IsPublicAddress):
		return c.wrong("wrong_address", bare(c.host)+" has addresses that are not those of "+bare(c.target),
			"replace its A and AAAA records by a CNAME record that points to "+bare(c.target)).instead(s)
	}
	return s
}

// instead notes the observation that s stands for, for the log.
func (s observation) instead(of observation) observation {
	if s.hidden = of.hidden; s.hidden == "" {
		s.hidden = of.code + ": " + of.fact
	}
	return s
}

// isInternal reports whether a name is below a top-level domain that is not in the public DNS.
func isInternal(name string) bool {
	return !store.IsPublicName(strings.ToLower(bare(name)))
}
