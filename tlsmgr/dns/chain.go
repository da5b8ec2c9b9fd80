package dns

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	miekg "github.com/miekg/dns"

	"mtagd/store"
)

// maxHops is the number of CNAME records that may lie between a host and the target. Resolvers give up at about it.
const maxHops = 8

// chain follows the CNAME records from a host, as one side sees them.
type chain struct {
	*lookup
	// ask returns what each server of the side says about a name. It returns none when no server can be asked.
	ask func(ctx context.Context, name string) []view

	chained map[string]string // CNAME records of later names, from a resolver's earlier answers
	asked   int               // number of names asked about
}

// followPath follows the chain from the last name of a path, which begins with the host.
func (c *chain) followPath(ctx context.Context, path []string) observation {
	last := len(path) - 1
	name := path[last]
	switch {
	case name == c.target:
		return observation{verdict: store.DNSCorrect, code: "ok", fact: c.points(path[:1], c.target)}
	case slices.Contains(path[:last], name):
		return c.wrong("loop", bare(c.host)+" leads into a loop of CNAME records ("+strings.Join(bareNames(path), " → ")+")", "")
	case last == maxHops || c.asked > 2*maxHops:
		return c.wrong("too_many_hops", fmt.Sprintf("%s goes through more than %d CNAME records", bare(c.host), maxHops),
			"point it straight to "+bare(c.target))
	}
	if next, ok := c.chained[name]; ok {
		return c.followPath(ctx, append(slices.Clone(path), next))
	}
	c.asked++
	return c.combine(ctx, path, c.ask(ctx, name))
}

// combine makes one observation of the views of a zone's name servers, or of a resolver's single view. If some servers
// answer and others fail, the answers count: a resolver would ask the next server too.
func (c *chain) combine(ctx context.Context, path []string, views []view) observation {
	var opinions [][]view // views that agree
	for _, v := range views {
		i := slices.IndexFunc(opinions, func(o []view) bool { return v.agrees(o[0]) })
		if i < 0 {
			opinions = append(opinions, []view{v})
		} else {
			opinions[i] = append(opinions[i], v)
		}
	}
	first := map[store.DNSVerdict]observation{}
	var facts, failures []string
	disagree := false
	for _, o := range opinions {
		s := c.judge(ctx, path, o)
		if _, known := first[s.verdict]; !known {
			first[s.verdict] = s
		}
		if o[0].err != nil {
			failures = append(failures, s.fact)
			continue
		}
		facts = append(facts, s.saidBy(serverNames(o)))
		disagree = disagree || s.verdict != store.DNSCorrect
	}
	correct, someCorrect := first[store.DNSCorrect]
	wrong, someWrong := first[store.DNSWrong]
	pending, somePending := first[store.DNSPending]
	switch {
	case someCorrect && disagree:
		return observation{verdict: store.DNSPending, code: "servers_disagree", fact: strings.Join(facts, ", but "),
			fix: "make all name servers give the same record, then try again", namesWho: true}
	case someCorrect:
		if failures != nil {
			correct.code, correct.exception = "ok_server_failing", "but "+strings.Join(failures, ", and ")
		}
		return correct
	case someWrong:
		return wrong
	case somePending:
		return pending
	}
	return first[store.DNSUnreachable]
}

// judge returns the verdict on a host whose path ends at a name of which all servers asked have the same view.
func (c *chain) judge(ctx context.Context, path []string, views []view) observation {
	s := c.judgeOpenly(ctx, path, views)
	if c.hidesPrivate {
		return c.hide(path, views[0], s)
	}
	return s
}

func (c *chain) judgeOpenly(ctx context.Context, path []string, views []view) observation {
	seen := views[0]
	switch {
	case len(path) > 1 && (seen.noAlias && seen.err != nil || errors.Is(seen.err, errRefused)):
		// The chain ends at a name without a CNAME record, or the resolver refuses questions about zones other than the
		// host's. In both cases the host's own record is known, and decides.
		return c.elsewhere(path, "")
	case seen.err != nil:
		return c.failed(path, views)
	case len(seen.aliases) > 1:
		targets := bareNames(seen.aliases)
		return c.wrong("several_cnames",
			fmt.Sprintf("%s has %d CNAME records (to %s)", bare(path[len(path)-1]), len(targets), list(targets)),
			"leave the one that points to "+bare(c.target))
	case len(seen.aliases) == 1:
		if seen.by.recursive() {
			maps.Copy(c.chained, seen.chained)
		}
		return c.followPath(ctx, append(slices.Clone(path), seen.aliases[0]))
	case len(seen.addresses) > 0:
		return c.judgeAddresses(path, seen.addresses)
	case len(path) == 1:
		return c.missing(ctx, seen)
	case seen.absent:
		return c.elsewhere(path, ", which does not exist")
	}
	return c.elsewhere(path, "")
}

// failed is the observation when some servers failed, all in the same way, to answer about the last name of a path.
func (c *chain) failed(path []string, views []view) observation {
	by := views[0].by
	s := failureOf(by, views[0].err).about(path[len(path)-1], serverNames(views), by.zone)
	if s.verdict != store.DNSUnreachable && len(path) > 1 {
		s.fact = c.points(path, path[1]) + ", but " + s.fact
	}
	return s
}

// judgeAddresses is the observation when a path ends at addresses. They are correct if all of them are the target's: some
// DNS providers flatten a CNAME record, which means that they answer with its target's current addresses.
func (c *chain) judgeAddresses(path []string, addresses map[netip.Addr]bool) observation {
	ours, err := c.targetAddresses()
	switch {
	case err == nil && every(addresses, func(a netip.Addr) bool { return ours[a] }):
		return observation{verdict: store.DNSCorrect, code: "flattened",
			fact: fmt.Sprintf("%s has the addresses of %s", bare(c.host), bare(c.target))}
	case len(path) > 1: // the CNAME record is wrong, whatever the target's addresses are
		return c.elsewhere(path, "")
	case err != nil:
		return observation{verdict: store.DNSPending, code: "target_unknown", namesWho: true,
			fact: fmt.Sprintf("%s has addresses, but those of %s are not known at the moment, so they cannot be compared", bare(c.host), bare(c.target)),
			fix:  fmt.Sprintf("point it to %s by a CNAME record, or try again in a few minutes", bare(c.target))}
	case every(addresses, cloudflare.Contain):
		return c.wrong("proxied", fmt.Sprintf("%s has addresses of Cloudflare's proxy (%s)", bare(c.host), listAddresses(addresses)),
			fmt.Sprintf("switch the proxy off for this record (DNS only) and make it a CNAME record that points to %s", bare(c.target)))
	}
	return c.wrong("wrong_address",
		fmt.Sprintf("%s has addresses (%s) that are not those of %s", bare(c.host), listAddresses(addresses), bare(c.target)),
		fmt.Sprintf("replace its A and AAAA records by a CNAME record that points to %s", bare(c.target)))
}

// missing is the observation when the host has no record. It looks for the two most common mistakes.
func (c *chain) missing(ctx context.Context, seen view) observation {
	root := miekg.Fqdn(store.RootDomain(bare(c.host)))
	if seen.authority != "" && seen.authority != root && miekg.IsSubDomain(seen.authority, root) {
		return c.wrong("no_domain", fmt.Sprintf("the domain %s does not exist in DNS", bare(root)),
			fmt.Sprintf("register it, or have its name servers entered, and add a CNAME record for %s that points to %s", bare(c.host), bare(c.target)))
	}
	// DNS providers append the domain to a name without a final dot: then the record's name ends with the domain twice.
	ctx, cancel := context.WithTimeout(ctx, graceTimeout)
	defer cancel()
	twice := c.host + root
	if m, err := seen.by.ask(ctx, twice, miekg.TypeCNAME); err == nil {
		found := newView(seen.by)
		found.read(m, twice)
		if len(found.aliases) == 1 && strings.HasPrefix(found.aliases[0], c.target) {
			return c.wrong("appended_name", fmt.Sprintf("the CNAME record is at %s: the DNS provider appended the domain to a name that already had it", bare(twice)),
				fmt.Sprintf("name it %s, so that it is at %s", strings.TrimSuffix(c.host, "."+root), bare(c.host)))
		}
	}
	return c.wrong("no_record", bare(c.host)+" has no record", "add a CNAME record that points to "+bare(c.target))
}

// elsewhere is the observation when a path ends at a name that is not the target.
func (c *chain) elsewhere(path []string, remark string) observation {
	end := path[len(path)-1]
	switch {
	case strings.HasPrefix(path[1], c.target): // the provider appended the domain: more follows the target's final dot
		return c.wrong("appended_value", c.points(path, path[1]),
			fmt.Sprintf("point it to %s, with a final dot if the DNS provider appends the domain", bare(c.target)))
	case len(path) > 2:
		return c.wrong("chain_ends_elsewhere", c.points(path, path[1])+", which leads to "+bare(end)+remark, "")
	case isCDN(end):
		return c.wrong("proxied", c.points(path, end)+", a name of a content delivery network"+remark, "point it straight to "+bare(c.target))
	}
	return c.wrong("wrong_target", c.points(path, end)+remark, "")
}

func (c *chain) points(path []string, to string) string {
	return bare(path[0]) + " points to " + bare(to)
}

// wrong is the observation of a mistake that the merchant has to correct. The default fix: point to the target.
func (c *chain) wrong(code, fact, fix string) observation {
	if fix == "" {
		fix = "point it to " + bare(c.target)
	}
	return observation{verdict: store.DNSWrong, code: code, fact: fact, fix: fix}
}
