package tlsmgr

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"

	"github.com/miekg/dns"
)

// view is what one server says about one name. Without an error and without a delegation, it says that
// the name is an alias, or has addresses, or has nothing that leads anywhere.
type view struct {
	by        nameServer
	aliases   []string          // targets of the name's CNAME records; more than one is a mistake
	told      map[string]string // aliases of other names that came along: a resolver tells a whole chain
	addresses map[netip.Addr]bool
	absent    bool   // the name does not exist (NXDOMAIN), so nothing below it does
	authority string // of an absent name: the zone that says so
	noAlias   bool   // the name has no CNAME record, whatever is known of its addresses
	delegated *delegation
	err       error
}

// delegation is what a zone's name server says about a zone below it.
type delegation struct {
	zone    string
	servers []string                // names
	glue    map[string][]netip.Addr // addresses that came along, by name
}

// view asks for the CNAME record and, beside it, for addresses. The CNAME record is what counts: a target
// without addresses, or with a failing zone, does not hide a record that is right. Addresses are asked
// for at the same time because they have to be known when there is no CNAME record, and
// because some servers know no other types.
func (s nameServer) view(ctx context.Context, name string) view {
	seen := view{by: s, told: map[string]string{}, addresses: map[netip.Addr]bool{}}
	// Of a type that a server ignores it has no records; it must know the two that everybody knows.
	failed := map[uint16]error{dns.TypeCNAME: errTimeout, dns.TypeA: errTimeout, dns.TypeAAAA: nil}
	s.askTypes(ctx, name, []uint16{dns.TypeCNAME, dns.TypeA, dns.TypeAAAA}, func(qtype uint16, m *dns.Msg, err error) bool {
		failed[qtype] = err
		if err == nil {
			seen.read(m, name)
			seen.noAlias = seen.noAlias || qtype == dns.TypeCNAME && len(seen.aliases) == 0
		}
		return len(seen.aliases) > 0 || seen.delegated != nil
	})
	settled := len(seen.aliases) > 0 || len(seen.addresses) > 0 || seen.absent || seen.delegated != nil
	if !settled {
		seen.err = cmp.Or(failed[dns.TypeCNAME], failed[dns.TypeA], failed[dns.TypeAAAA])
	}
	return seen
}

// read adds to a view what an answer about its name holds.
func (v *view) read(m *dns.Msg, name string) {
	var aliases []string
	for _, rr := range m.Answer {
		owner := dns.CanonicalName(rr.Header().Name)
		switch rr := rr.(type) {
		case *dns.CNAME:
			target := dns.CanonicalName(rr.Target)
			if owner != name {
				v.told[owner] = target
			} else if !slices.Contains(aliases, target) {
				aliases = append(aliases, target)
			}
		case *dns.A, *dns.AAAA:
			v.addresses[addressOf(rr)] = true
		}
	}
	if len(aliases) > 0 {
		v.aliases = aliases
		return
	}
	v.delegated = v.by.delegation(m)
	if m.Rcode == dns.RcodeNameError {
		v.absent = true
		for _, rr := range m.Ns {
			if rr.Header().Rrtype == dns.TypeSOA {
				v.authority = dns.CanonicalName(rr.Header().Name)
			}
		}
	}
}

// addressOf is the address in an A or AAAA record.
func addressOf(rr dns.RR) netip.Addr {
	var ip net.IP
	switch rr := rr.(type) {
	case *dns.A:
		ip = rr.A
	case *dns.AAAA:
		ip = rr.AAAA
	}
	addr, _ := netip.AddrFromSlice(ip) // a record without an address: the zero address, which is nobody's
	return addr.Unmap()
}

// delegation reads a referral to the servers of a zone below the server's own, on the way to the name
// that was asked for; nil when the answer is none.
func (s nameServer) delegation(m *dns.Msg) *delegation {
	if s.recursive() || m.Rcode != dns.RcodeSuccess || m.Authoritative || len(m.Answer) > 0 {
		return nil
	}
	d := &delegation{glue: map[string][]netip.Addr{}}
	for _, rr := range m.Ns {
		ns, ok := rr.(*dns.NS)
		if !ok {
			continue
		}
		zone := dns.CanonicalName(ns.Hdr.Name)
		if zone == s.zone || !dns.IsSubDomain(s.zone, zone) || !dns.IsSubDomain(zone, m.Question[0].Name) {
			return nil
		}
		d.zone = zone
		d.servers = append(d.servers, dns.CanonicalName(ns.Ns))
	}
	if d.servers == nil {
		return nil
	}
	for _, rr := range m.Extra {
		switch rr.(type) {
		case *dns.A, *dns.AAAA:
			name := dns.CanonicalName(rr.Header().Name)
			d.glue[name] = append(d.glue[name], addressOf(rr))
		}
	}
	return d
}

var errNoAddress = errors.New("no address")

// allAddresses are the addresses at the end of whatever chain begins at a name: a question for a
// recursive resolver. The error is errTimeout when it has not said whether there are any.
func (s nameServer) allAddresses(ctx context.Context, name string) (map[netip.Addr]bool, error) {
	found := map[netip.Addr]bool{}
	err := errTimeout
	s.askTypes(ctx, name, []uint16{dns.TypeA, dns.TypeAAAA}, func(_ uint16, m *dns.Msg, askErr error) bool {
		if askErr != nil {
			if err == errTimeout {
				err = askErr
			}
			return false
		}
		err = errNoAddress
		for _, rr := range m.Answer {
			switch rr.(type) {
			case *dns.A, *dns.AAAA:
				found[addressOf(rr)] = true
			}
		}
		return false
	})
	if len(found) > 0 {
		err = nil
	}
	return found, err
}
