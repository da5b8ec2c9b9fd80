package dns

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	miekg "github.com/miekg/dns"

	"mtagd/store"
)

const (
	// maxServers is how many of a zone's name servers are asked.
	maxServers = 4
	// maxCuts limits how far below the registered domain a name's zone is searched, in labels. It also limits how many
	// zones are asked in a row when each refers to the next one below.
	maxCuts = 4
)

// zoneServers are a zone and those of its own name servers that can be asked.
type zoneServers struct {
	name    string // empty: the zone could not be found
	servers []nameServer
	// Names of servers that cannot be asked: those at private addresses, and those whose names have no address.
	private, addressless []string
}

// askZone finds the zone that holds a name, and asks its name servers. There are no views when none can be asked.
func (l *lookup) askZone(ctx context.Context, name string) (zoneServers, []view) {
	z := l.zoneOf(ctx, name)
	for range maxCuts {
		views := make([]view, len(z.servers))
		l.each(len(views), func(i int) {
			views[i] = view{by: z.servers[i], err: errBadAnswer} // remains if the next line panics
			views[i] = z.servers[i].view(ctx, name)
		})
		// Ignore servers that this machine has no route to, such as those with IPv6 only when the machine has none.
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
	return zoneServers{}, nil
}

// zoneOf finds the zone that holds a name: the closest one above it for which the resolvers know name servers.
//
// If the domain's name servers are silent or lame, the resolvers fail for the domain. They may also fail to find the
// addresses of its name servers. In both cases zoneOf returns a zone above the domain: its servers refer to the
// domain's name servers, usually with their addresses.
func (l *lookup) zoneOf(ctx context.Context, name string) zoneServers {
	ctx, cancel := l.afterResolvers(ctx)
	defer cancel()

	candidates := above(name)
	domain := slices.Index(candidates, miekg.Fqdn(store.RootDomain(bare(name))))
	if domain < 0 {
		return zoneServers{} // a label of the name contains a dot, so its domain is not among the candidates
	}
	skipped := max(0, domain-maxCuts)
	candidates, domain = candidates[skipped:], domain-skipped

	found := make([][]string, len(candidates))
	errs := make([]error, len(candidates))
	l.each(len(candidates), func(i int) {
		var m *miekg.Msg
		if m, errs[i] = l.anyResolver(ctx, candidates[i], miekg.TypeNS); errs[i] != nil {
			return
		}
		for _, rr := range m.Answer {
			if ns, ok := rr.(*miekg.NS); ok && miekg.CanonicalName(ns.Hdr.Name) == candidates[i] {
				found[i] = append(found[i], miekg.CanonicalName(ns.Ns))
			}
		}
	})
	var closest zoneServers
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

// above lists the zones that may hold a name, closest first and the root last. The name itself is among them only if
// it is a registered domain.
func above(name string) []string {
	var names []string
	if name == miekg.Fqdn(store.RootDomain(bare(name))) {
		names = append(names, name)
	}
	for i, end := miekg.NextLabel(name, 0); !end; i, end = miekg.NextLabel(name, i) {
		names = append(names, name[i:])
	}
	return append(names, ".")
}

// newZone finds the addresses of a zone's name servers, in glue or else by the resolvers.
func (l *lookup) newZone(ctx context.Context, name string, servers []string, glue map[string][]netip.Addr) zoneServers {
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
		slices.SortFunc(addresses[i], netip.Addr.Compare) // IPv4 first: not every machine has IPv6
	})
	z := zoneServers{name: name}
	asked := map[netip.Addr]bool{}
	for i, server := range servers {
		at := slices.IndexFunc(addresses[i], func(a netip.Addr) bool { return l.AllowPrivate || store.IsPublicAddress(a) })
		switch {
		case errors.Is(errs[i], errTimeout): // it may have addresses
		case len(addresses[i]) == 0:
			z.addressless = append(z.addressless, bare(server))
		case at < 0:
			z.private = append(z.private, bare(server))
		case !asked[addresses[i][at]]:
			asked[addresses[i][at]] = true
			z.servers = append(z.servers, nameServer{
				name:    bare(server),
				address: net.JoinHostPort(addresses[i][at].String(), strconv.Itoa(l.Port)),
				zone:    name,
				timeout: nameServerTimeout,
			})
		}
	}
	return z
}

// obstacle says why none of the zone's name servers could be asked, in an observation without a verdict. Its code is empty
// if the merchant can do nothing about it. The two reasons have one sentence: whether a name has a private address or
// none must not be told of names in the operator's network.
func (z zoneServers) obstacle() observation {
	s := observation{namesWho: true}
	if len(z.servers) == 0 && (z.private != nil || z.addressless != nil) {
		s.code = "no_server_address"
		s.fact = "the name servers of " + zoneName(z.name) + " (" + list(slices.Sorted(slices.Values(slices.Concat(z.private, z.addressless)))) +
			") have no public addresses, so they were not asked"
		s.fix = "give them public addresses, or correct the name servers at the registrar"
		s.hidden = "with private addresses: " + list(z.private) + "; without addresses: " + list(z.addressless)
	}
	return s
}

// who is how findings name the zone's name servers together.
func (z zoneServers) who() string { return zoneName(z.name) + "'s name servers" }
