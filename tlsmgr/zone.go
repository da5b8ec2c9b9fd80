package tlsmgr

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"github.com/miekg/dns"

	"mtagd/store"
)

const (
	// maxServers is how many of a zone's name servers are asked.
	maxServers = 4
	// maxCuts is how many delegations below a zone are followed to the one that holds a name.
	maxCuts = 4
)

// zone is a zone's own name servers, as far as they can be asked.
type zone struct {
	name    string // "": it could not be found out
	servers []nameServer
	// Name servers that cannot be asked, by name.
	private, homeless []string
}

// zoneOf finds the zone that holds a name: the closest one above it that the resolvers know name servers
// of. Where they fail for the domain itself, as they do when its name servers are silent or lame, or for the
// addresses of all its name servers, a zone above is found instead, which knows whom the domain is delegated to
// and where those are.
func (l *lookup) zoneOf(ctx context.Context, name string) zone {
	ctx, cancel := l.patient(ctx)
	defer cancel()

	candidates := above(name)
	domain := slices.Index(candidates, dns.Fqdn(store.RootDomain(bare(name))))
	if domain < 0 {
		return zone{} // a name with dots inside its labels
	}
	skipped := max(0, domain-maxCuts)
	candidates, domain = candidates[skipped:], domain-skipped

	found := make([][]string, len(candidates))
	errs := make([]error, len(candidates))
	l.each(len(candidates), func(i int) {
		var m *dns.Msg
		if m, errs[i] = l.anyResolver(ctx, candidates[i], dns.TypeNS); errs[i] != nil {
			return
		}
		for _, rr := range m.Answer {
			if ns, ok := rr.(*dns.NS); ok && dns.CanonicalName(ns.Hdr.Name) == candidates[i] {
				found[i] = append(found[i], dns.CanonicalName(ns.Ns))
			}
		}
	})
	var closest zone
	for i, servers := range found {
		if i > domain && errs[domain] == nil && closest.name == "" {
			break
		}
		if servers == nil {
			continue
		}
		z := l.newZone(ctx, candidates[i], servers, nil)
		if len(z.servers) > 0 || z.private != nil {
			return z
		}
		if closest.name == "" {
			closest = z
		}
	}
	return closest
}

// above lists a domain and what is above it, or all that is above another name: closest first, the root
// last.
func above(name string) []string {
	var names []string
	if name == dns.Fqdn(store.RootDomain(bare(name))) {
		names = append(names, name)
	}
	for i, end := dns.NextLabel(name, 0); !end; i, end = dns.NextLabel(name, i) {
		names = append(names, name[i:])
	}
	return append(names, ".")
}

// newZone finds the addresses of a zone's name servers. Addresses that came with a delegation spare
// the question.
func (l *lookup) newZone(ctx context.Context, name string, servers []string, glue map[string][]netip.Addr) zone {
	slices.Sort(servers)
	servers = slices.Compact(servers)
	servers = servers[:min(len(servers), maxServers)]

	addresses := make([][]netip.Addr, len(servers))
	errs := make([]error, len(servers))
	l.each(len(servers), func(i int) {
		if addresses[i] = glue[servers[i]]; addresses[i] == nil {
			var known map[netip.Addr]bool
			known, errs[i] = l.allAddresses(ctx, servers[i])
			addresses[i] = slices.Collect(maps.Keys(known))
		}
		slices.SortFunc(addresses[i], netip.Addr.Compare) // IPv4 first: not every service has IPv6
	})
	z := zone{name: name}
	asked := map[netip.Addr]bool{}
	for i, server := range servers {
		at := slices.IndexFunc(addresses[i], func(a netip.Addr) bool { return l.allowPrivate || isPublic(a) })
		switch {
		case errors.Is(errs[i], errTimeout): // it may have addresses
		case len(addresses[i]) == 0:
			z.homeless = append(z.homeless, bare(server))
		case at < 0:
			z.private = append(z.private, bare(server))
		case !asked[addresses[i][at]]:
			asked[addresses[i][at]] = true
			z.servers = append(z.servers, nameServer{
				name:    bare(server),
				address: net.JoinHostPort(addresses[i][at].String(), strconv.Itoa(l.port)),
				zone:    name,
				timeout: nameServerTimeout,
			})
		}
	}
	return z
}

// askZone asks the own name servers of the zone that holds a name, and returns the zone with what they
// say. There are no views when nobody can be asked.
func (l *lookup) askZone(ctx context.Context, name string) (zone, []view) {
	z := l.zoneOf(ctx, name)
	for range maxCuts {
		views := make([]view, len(z.servers))
		l.each(len(views), func(i int) {
			views[i] = view{by: z.servers[i], err: errBadAnswer}
			views[i] = z.servers[i].view(ctx, name)
		})
		// Without IPv6, for example, nothing can be told of a server that has nothing else.
		views = slices.DeleteFunc(views, func(v view) bool {
			return errors.Is(v.err, syscall.ENETUNREACH) || errors.Is(v.err, syscall.EADDRNOTAVAIL) || errors.Is(v.err, syscall.EAFNOSUPPORT)
		})
		below := slices.IndexFunc(views, func(v view) bool { return v.delegated != nil })
		if below < 0 {
			return z, views
		}
		d := views[below].delegated
		z = l.newZone(ctx, d.zone, d.servers, d.glue)
	}
	return zone{}, nil
}

// obstacle is why a zone's name servers could not be asked, as a sighting without a verdict; its code is ""
// where there is nothing to say.
func (z zone) obstacle() sighting {
	s := sighting{own: true}
	switch {
	case len(z.servers) > 0:
	case z.private != nil:
		s.code = "private_name_server"
		s.fact = "the name servers of " + bare(z.name) + " (" + list(z.private) + ") have private addresses, so they were not asked"
		s.fix = "give them public addresses"
	case z.homeless != nil:
		s.code = "no_server_address"
		s.fact = bare(z.name) + " is delegated to " + list(z.homeless) + ", which cannot be found in DNS"
		s.fix = "correct the name servers at the registrar"
	}
	return s
}

// Addresses that are not public beside those that the standard library can tell. Of IPv6, public is what IANA has
// given out, without the tunnels, whose addresses stand for an IPv4 address that could be any.
var (
	reserved = prefixes("0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "198.18.0.0/15", "240.0.0.0/4", "2001::/23", "2002::/16")
	givenOut = netip.MustParsePrefix("2000::/3")
)

// isPublic reports whether an address may belong to a stranger's name server. Anything else is in a
// network of the operator's, and a zone must not make the service send packets there.
func isPublic(a netip.Addr) bool {
	return a.IsGlobalUnicast() && !a.IsPrivate() && !contains(reserved, a) && (a.Is4() || givenOut.Contains(a))
}
