package tlsmgr

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"mtagd/store"
)

// failure is how a server failed to answer, in words: {name} is what was asked about, {who} the servers,
// {zone} their zone.
type failure struct {
	err             error // nil: any other
	code, fact, fix string
}

var nameServerFailures = []failure{
	{errServfail, "servfail", "the answer about {name} from {who} is SERVFAIL", "check the zone there, then try again"},
	{errLame, "lame_delegation", "{zone} is delegated to {who}, where it is not served", "serve the zone there, or correct its name servers at the registrar"},
	{errNoTCP, "no_tcp", "the answer about {name} from {who} does not fit into UDP, and none comes over TCP", "open TCP port 53 there"},
	{errBadAnswer, "bad_answer", "the answer about {name} from {who} cannot be used", "check these name servers, then try again"},
	{nil, "silent_name_server", "no answer about {name} comes from {who}", "check these name servers of {zone}, then try again"},
}

var resolverFailures = []failure{
	{errTimeout, "timeout", "no answer about {name} came in time", "try again in a few minutes"},
	{errServfail, "servfail", "the name servers of {name} fail to answer (SERVFAIL)", "check the zone, then try again"},
	{errBogus, "dnssec_bogus", "the DNSSEC signatures of {name} are broken, so resolvers that check them give no answer", "sign the zone again, or remove its DS record at the registrar"},
	{errRefused, "refused", "the answer about {name} is REFUSED", "check the zone and its name servers, then try again"},
	{errLame, "lame_delegation", "the name servers that {name} is delegated to do not answer for it", "check the delegation, then try again"},
	{errNoTCP, "no_tcp", "the answer about {name} does not fit into UDP, and none comes over TCP", "make the answer smaller, or try again in a few minutes"},
	{errBadAnswer, "bad_answer", "the answer about {name} cannot be used", "try again in a few minutes"},
	{nil, "unreachable", "no DNS resolver can be reached", "try again later"},
}

// failure is the row that a view without an answer belongs to.
func (v view) failure() failure {
	table := nameServerFailures
	if v.by.recursive() {
		table = resolverFailures
	}
	return table[slices.IndexFunc(table, func(f failure) bool { return f.err == nil || errors.Is(v.err, f.err) })]
}

// unsettled is the sighting after a question about the last name of a path that got no answer to go
// by, from servers that all failed in the same way.
func (c *chain) unsettled(path []string, views []view) sighting {
	row := views[0].failure()
	words := strings.NewReplacer("{name}", bare(path[len(path)-1]), "{who}", servers(views), "{zone}", bare(views[0].by.zone))
	s := sighting{verdict: store.DNSPending, code: row.code, fact: words.Replace(row.fact), fix: words.Replace(row.fix), own: true}
	if s.code == "unreachable" {
		s.verdict = store.DNSUnreachable
	} else if len(path) > 1 {
		s.fact = c.points(path, path[1]) + ", but " + s.fact
	}
	return s
}

// said is a sighting's fact with who says so, where the fact itself does not tell.
func said(who string, s sighting) string {
	if s.own {
		return s.fact
	}
	return "according to " + who + ", " + s.fact
}

// finding makes a finding of what was seen and what there is to do.
func finding(verdict store.DNSVerdict, code, fact, fix string) store.DNSFinding {
	detail := fact
	if fix != "" {
		detail += "; " + fix
	}
	return store.DNSFinding{Verdict: verdict, Code: code, Detail: detail}
}

// servers are the names of those who say something.
func servers(views []view) string {
	var names []string
	for _, v := range views {
		names = append(names, v.by.name)
	}
	return list(names)
}

// resolverName is how sentences call a resolver: merchants know the public ones.
func resolverName(address string) string {
	host, _, _ := net.SplitHostPort(address) // was checked
	if ip, err := netip.ParseAddr(host); err == nil && !isPublic(ip) {
		return "this service's resolver"
	}
	return "the resolver " + host
}

// list joins names as a sentence does.
func list(names []string) string {
	last := len(names) - 1
	if last <= 0 {
		return strings.Join(names, "")
	}
	return fmt.Sprintf("%s and %s", strings.Join(names[:last], ", "), names[last])
}

func listAddresses(addresses map[netip.Addr]bool) string {
	var words []string
	for _, a := range slices.SortedFunc(maps.Keys(addresses), netip.Addr.Compare) {
		words = append(words, a.String())
	}
	return list(words)
}

func arrows(path []string) string {
	var names []string
	for _, name := range path {
		names = append(names, bare(name))
	}
	return strings.Join(names, " → ")
}

// bare is a name as people write it, without the final dot.
func bare(name string) string { return strings.TrimSuffix(name, ".") }
