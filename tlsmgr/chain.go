package tlsmgr

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"

	"mtagd/store"
)

// maxHops is how many CNAME records a host may be away from the target. Resolvers give up at about
// as many.
const maxHops = 8

// sighting is what one side sees at the host: a resolver, or the zones' own name servers together. Its
// sentence is "fact; fix", where either may be empty; a zero verdict says that nobody could be asked.
type sighting struct {
	verdict store.DNSVerdict
	code    string
	fact    string // what is so
	fix     string // what the merchant is to do
	own     bool   // the fact itself tells who says so
	remark  string // beside a correct fact: what did not keep the host from being correct
}

// chain follows the CNAME records from a host, asking one side.
type chain struct {
	host, target string
	// ask returns what each server of that side says about a name; none when there is nobody to ask.
	ask func(ctx context.Context, name string) []view
	// targetAddresses are those that count as the target's.
	targetAddresses func() (map[netip.Addr]bool, error)

	told  map[string]string // aliases that a resolver told before they were asked for
	asked int               // names
}

// from tells where a path of names leads that begins with the host.
func (c *chain) from(ctx context.Context, path []string) sighting {
	last := len(path) - 1
	name := path[last]
	switch {
	case name == c.target:
		return sighting{verdict: store.DNSCorrect, code: "ok", fact: c.points(path[:1], c.target)}
	case slices.Contains(path[:last], name):
		return c.wrong("loop", bare(c.host)+" leads into a loop of CNAME records ("+arrows(path)+")", "")
	case last == maxHops || c.asked > 2*maxHops:
		return c.wrong("too_many_hops", fmt.Sprintf("%s goes through more than %d CNAME records", bare(c.host), maxHops),
			"point it straight to "+bare(c.target))
	}
	if next, ok := c.told[name]; ok {
		return c.from(ctx, append(slices.Clone(path), next))
	}
	c.asked++
	return c.together(ctx, path, c.ask(ctx, name))
}

// together is what the views of a zone's name servers come to: of one resolver there is but one. A
// server without an answer does not outweigh one that has it, since that is how DNS is meant to work.
func (c *chain) together(ctx context.Context, path []string, views []view) sighting {
	var opinions [][]view // those that say the same
	for _, v := range views {
		i := slices.IndexFunc(opinions, func(o []view) bool { return v.agrees(o[0]) })
		if i < 0 {
			opinions = append(opinions, []view{v})
		} else {
			opinions[i] = append(opinions[i], v)
		}
	}
	first := map[store.DNSVerdict]sighting{}
	var sayings, failing []string
	disagree := false
	for _, o := range opinions {
		s := c.judge(ctx, path, o)
		if _, ok := first[s.verdict]; !ok {
			first[s.verdict] = s
		}
		if o[0].err != nil {
			failing = append(failing, s.fact)
			continue
		}
		sayings = append(sayings, said(servers(o), s))
		disagree = disagree || s.verdict != store.DNSCorrect
	}
	correct, someCorrect := first[store.DNSCorrect]
	wrong, someWrong := first[store.DNSWrong]
	pending, somePending := first[store.DNSPending]
	switch {
	case someCorrect && disagree:
		return sighting{verdict: store.DNSPending, code: "servers_disagree", fact: strings.Join(sayings, ", but "),
			fix: "make all name servers give the same record, then try again", own: true}
	case someCorrect:
		if failing != nil {
			correct.code, correct.remark = "ok_server_failing", "but "+strings.Join(failing, ", and ")
		}
		return correct
	case someWrong:
		return wrong
	case somePending:
		return pending
	}
	return first[store.DNSUnreachable]
}

// judge tells what it means for the host that the last name of a path is as some servers see it.
func (c *chain) judge(ctx context.Context, path []string, views []view) sighting {
	seen := views[0]
	switch {
	case len(path) > 1 && (seen.noAlias && seen.err != nil || errors.Is(seen.err, errRefused)):
		// A name that goes no further, or a resolver that knows the host's zone alone: the host's own
		// record stands all the same.
		return c.elsewhere(path, "")
	case seen.err != nil:
		return c.unsettled(path, views)
	case len(seen.aliases) > 1:
		var targets []string
		for _, alias := range seen.aliases {
			targets = append(targets, bare(alias))
		}
		return c.wrong("several_cnames",
			fmt.Sprintf("%s has %d CNAME records (to %s)", bare(path[len(path)-1]), len(targets), list(targets)),
			"leave the one that points to "+bare(c.target))
	case len(seen.aliases) == 1:
		if seen.by.recursive() {
			maps.Copy(c.told, seen.told)
		}
		return c.from(ctx, append(slices.Clone(path), seen.aliases[0]))
	case len(seen.addresses) > 0:
		return c.judgeAddresses(path, seen.addresses)
	case len(path) > 1 && seen.absent:
		return c.elsewhere(path, ", which does not exist")
	case len(path) > 1:
		return c.elsewhere(path, "")
	}
	return c.missing(ctx, seen)
}

// judgeAddresses tells what it means that a path ends at addresses: some DNS providers flatten a CNAME
// record into the addresses that its target has at the moment, so addresses that are all the
// target's count as correct.
func (c *chain) judgeAddresses(path []string, addresses map[netip.Addr]bool) sighting {
	ours, err := c.targetAddresses()
	switch {
	case err == nil && isSubset(addresses, ours):
		return sighting{verdict: store.DNSCorrect, code: "flattened",
			fact: fmt.Sprintf("%s has the addresses of %s", bare(c.host), bare(c.target))}
	case len(path) > 1: // whatever is known of addresses
		return c.elsewhere(path, "")
	case err != nil:
		return sighting{verdict: store.DNSPending, code: "target_unknown", own: true,
			fact: fmt.Sprintf("%s has addresses, which cannot be compared with those of %s: these are not known at the moment", bare(c.host), bare(c.target)),
			fix:  fmt.Sprintf("point it to %s by a CNAME record, or try again in a few minutes", bare(c.target))}
	}
	if isCloudflare(addresses) {
		return c.wrong("proxied", fmt.Sprintf("%s has addresses of Cloudflare's proxy (%s)", bare(c.host), listAddresses(addresses)),
			fmt.Sprintf("switch the proxy off for this record (DNS only) and let it be a CNAME record that points to %s", bare(c.target)))
	}
	return c.wrong("wrong_address",
		fmt.Sprintf("%s has addresses (%s) that are not those of %s", bare(c.host), listAddresses(addresses), bare(c.target)),
		fmt.Sprintf("replace its A and AAAA records by a CNAME record that points to %s", bare(c.target)))
}

// missing is the sighting of a host without a record, and looks for the commonest reasons.
func (c *chain) missing(ctx context.Context, seen view) sighting {
	root := dns.Fqdn(store.RootDomain(bare(c.host)))
	if seen.authority != "" && seen.authority != root && dns.IsSubDomain(seen.authority, root) {
		return c.wrong("no_domain", fmt.Sprintf("the domain %s does not exist in DNS", bare(root)),
			fmt.Sprintf("register it, or have its name servers entered, and add a CNAME record for %s that points to %s", bare(c.host), bare(c.target)))
	}
	// Providers' forms add the domain to whatever is written into them without a final dot.
	ctx, cancel := context.WithTimeout(ctx, causePatience)
	defer cancel()
	twice := c.host + root
	if m, err := seen.by.ask(ctx, twice, dns.TypeCNAME); err == nil {
		found := view{by: seen.by, told: map[string]string{}, addresses: map[netip.Addr]bool{}}
		found.read(m, twice)
		if len(found.aliases) == 1 && strings.HasPrefix(found.aliases[0], c.target) {
			return c.wrong("appended_name", fmt.Sprintf("the CNAME record is at %s, since the domain was added to a name that had it already", bare(twice)),
				fmt.Sprintf("name it %s, so that it is at %s", strings.TrimSuffix(c.host, "."+root), bare(c.host)))
		}
	}
	return c.wrong("no_record", bare(c.host)+" has no record", "add a CNAME record that points to "+bare(c.target))
}

// elsewhere is the sighting of a host whose path ends at another name than the target.
func (c *chain) elsewhere(path []string, remark string) sighting {
	end := path[len(path)-1]
	switch {
	case strings.HasPrefix(path[1], c.target): // with the final dot, so it goes on after it
		return c.wrong("appended_value", c.points(path, path[1]),
			fmt.Sprintf("point it to %s, with a final dot where the DNS provider adds the domain otherwise", bare(c.target)))
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

// wrong is a sighting that the merchant has to mend, by pointing the host to the target unless fix
// says better.
func (c *chain) wrong(code, fact, fix string) sighting {
	if fix == "" {
		fix = "point it to " + bare(c.target)
	}
	return sighting{verdict: store.DNSWrong, code: code, fact: fact, fix: fix}
}

// agrees reports whether two servers say the same about a name.
func (v view) agrees(w view) bool {
	if v.err != nil || w.err != nil {
		return v.err != nil && w.err != nil && v.failure().code == w.failure().code
	}
	return slices.Equal(slices.Sorted(slices.Values(v.aliases)), slices.Sorted(slices.Values(w.aliases))) &&
		maps.Equal(v.addresses, w.addresses)
}

func isSubset(some, of map[netip.Addr]bool) bool {
	for a := range some {
		if !of[a] {
			return false
		}
	}
	return true
}
