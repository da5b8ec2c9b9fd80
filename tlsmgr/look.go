package tlsmgr

import (
	"context"
	"errors"
	"net/netip"

	"github.com/miekg/dns"

	"mtagd/store"
)

// maxHops is how many CNAME records a host may be away from the target. Resolvers give up at about
// as many.
const maxHops = 8

// look is what one resolver sees at a host. It asks for the CNAME record rather than for addresses,
// so that a target without addresses, or with a failing zone, does not hide a record that is right.
func (v *Verifier) look(ctx context.Context, r resolver, host string) store.DNSFinding {
	var (
		name    = host
		visited = map[string]bool{host: true}
		aliases = map[string]string{} // all that the answers so far told
	)
	for hops := 0; name != v.target; hops++ {
		if hops == maxHops {
			return finding(store.DNSWrong, "too_many_hops",
				"%s goes through more than %d CNAME records; point it straight to %s", bare(host), maxHops, bare(v.target))
		}
		if _, told := aliases[name]; !told {
			answer, err := r.ask(ctx, name, dns.TypeCNAME)
			switch {
			case errors.Is(err, errRefused) && name != host:
				// A server that knows the host's zone alone: the host's own record stands all the same.
				return v.wrongTarget(host, aliases[host])
			case err != nil:
				return unsettled(host, err)
			case answer.Rcode == dns.RcodeNameError && len(answer.Answer) == 0 && name == host:
				return v.noRecord(host)
			}
			for _, rr := range answer.Answer {
				if c, ok := rr.(*dns.CNAME); ok {
					aliases[dns.CanonicalName(c.Hdr.Name)] = dns.CanonicalName(c.Target)
				}
			}
		}
		next, ok := aliases[name]
		switch {
		case !ok:
			return v.lookAtEnd(ctx, r, host, aliases[host], name)
		case visited[next]:
			return finding(store.DNSWrong, "loop",
				"%s leads into a loop of CNAME records; point it to %s", bare(host), bare(v.target))
		}
		visited[next] = true
		name = next
	}
	return finding(store.DNSCorrect, "ok", "%s points to %s", bare(host), bare(v.target))
}

// lookAtEnd tells what a chain comes to that ends at another name than the target: some DNS
// providers flatten a CNAME record into the addresses that its target has at the moment, so addresses that
// are all the target's count as correct. first is where the host's own record points, "" when the
// host has none.
func (v *Verifier) lookAtEnd(ctx context.Context, r resolver, host, first, end string) store.DNSFinding {
	found, err := r.addresses(ctx, end)
	if err == nil && len(found) > 0 {
		var ours map[netip.Addr]bool
		if ours, err = r.addresses(ctx, v.target); err == nil && isSubset(found, ours) {
			return finding(store.DNSCorrect, "flattened", "%s has the addresses of %s", bare(host), bare(v.target))
		}
	}
	switch {
	case first != "": // whatever is known of addresses
		return v.wrongTarget(host, first)
	case err != nil:
		return unsettled(host, err)
	case len(found) > 0:
		return finding(store.DNSWrong, "wrong_address",
			"%s has addresses that are not those of %s; replace its A and AAAA records by a CNAME record that points to %s",
			bare(host), bare(v.target), bare(v.target))
	default:
		return v.noRecord(host)
	}
}

func (v *Verifier) wrongTarget(host, first string) store.DNSFinding {
	return finding(store.DNSWrong, "wrong_target", "%s points to %s; point it to %s", bare(host), bare(first), bare(v.target))
}

func (v *Verifier) noRecord(host string) store.DNSFinding {
	return finding(store.DNSWrong, "no_record", "%s has no record; add a CNAME record that points to %s", bare(host), bare(v.target))
}

func isSubset(some, of map[netip.Addr]bool) bool {
	for a := range some {
		if !of[a] {
			return false
		}
	}
	return true
}

// unsettled is the finding after a question that got no answer to go by.
func unsettled(host string, err error) store.DNSFinding {
	switch {
	case errors.Is(err, errTimeout):
		return finding(store.DNSPending, "timeout", "no answer about %s came in time; try again in a few minutes", bare(host))
	case errors.Is(err, errServfail):
		return finding(store.DNSPending, "servfail",
			"the name servers of %s fail to answer (SERVFAIL); check the zone, then try again", bare(host))
	case errors.Is(err, errRefused):
		return finding(store.DNSPending, "refused",
			"the name servers of %s refuse to answer (REFUSED); check the zone, then try again", bare(host))
	case errors.Is(err, errLame):
		return finding(store.DNSPending, "lame_delegation",
			"the name servers that %s is delegated to do not answer for it; check the delegation, then try again", bare(host))
	case errors.Is(err, errBadAnswer):
		return finding(store.DNSPending, "bad_answer", "the answer about %s cannot be used; try again in a few minutes", bare(host))
	default:
		return finding(store.DNSUnreachable, "unreachable", "the DNS resolver cannot be reached; try again later")
	}
}
