package dns

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"mtagd/store"
)

// observation is what one side sees at the host. A side is a resolver, or the zones' own name servers together. Joined as
// "fact; fix", its texts are the sentence for the merchant. Either may be empty.
type observation struct {
	verdict   store.DNSVerdict // empty: no server of this side could be asked
	code      string
	fact      string // what the side sees
	fix       string // what the merchant should do
	namesWho  bool   // the fact itself says which servers see it
	exception string // if correct: something else that is wrong, but does not prevent verification
	hidden    string // for the log only: what the fact leaves out
}

// saidBy is the fact, with the side that sees it before it.
func (s observation) saidBy(who string) string {
	if s.namesWho {
		return s.fact
	}
	return "according to " + who + ", " + s.fact
}

// finding makes the detail of a finding from a fact and a fix.
func finding(verdict store.DNSVerdict, code, fact, fix string) store.DNSFinding {
	detail := fact
	if fix != "" {
		detail += "; " + fix
	}
	return store.DNSFinding{Verdict: verdict, Code: code, Detail: detail}
}

// failure describes how servers failed to answer. In its texts {name} stands for the name in the question, {who}
// for the servers and {zone} for their zone.
type failure struct {
	err             error // nil matches any error
	code, fact, fix string
}

var nameServerFailures = []failure{
	{errServfail, "servfail", "the answer about {name} from {who} is SERVFAIL", "check the zone there, then try again"},
	{errLame, "lame_delegation", "{zone} is delegated to {who}, where it is not served", "serve the zone there, or correct its name servers at the registrar"},
	{errNoTCP, "no_tcp", "the answer about {name} from {who} does not fit into UDP, and there is no answer over TCP", "open TCP port 53 there"},
	{errBadAnswer, "bad_answer", "the answer about {name} from {who} cannot be used", "check these name servers, then try again"},
	{nil, "silent_name_server", "no answer about {name} comes from {who}", "check these name servers of {zone}, then try again"},
}

var resolverFailures = []failure{
	{errTimeout, "timeout", "no answer about {name} came in time", "try again in a few minutes"},
	{errServfail, "servfail", "the name servers of {name} fail to answer (SERVFAIL)", "check the zone, then try again"},
	{errBogus, "dnssec_bogus", "the DNSSEC signatures of {name} are broken, so resolvers that check them give no answer", "sign the zone again, or remove its DS record at the registrar"},
	{errRefused, "refused", "the answer about {name} is REFUSED", "check the zone and its name servers, then try again"},
	{errLame, "lame_delegation", "the name servers that {name} is delegated to do not answer for it", "check the delegation, then try again"},
	{errNoTCP, "no_tcp", "the answer about {name} does not fit into UDP, and there is no answer over TCP", "make the answer smaller, or try again in a few minutes"},
	{errBadAnswer, "bad_answer", "the answer about {name} cannot be used", "try again in a few minutes"},
	{nil, "unreachable", "no DNS resolver can be reached", "try again later"},
}

// failureOf finds the failure for an error that ask returned for a server.
func failureOf(s nameServer, err error) failure {
	table := nameServerFailures
	if s.recursive() {
		table = resolverFailures
	}
	return table[slices.IndexFunc(table, func(f failure) bool { return f.err == nil || errors.Is(err, f.err) })]
}

// about fills in the texts of a failure and makes an observation of it.
func (f failure) about(name, who, zone string) observation {
	words := strings.NewReplacer("{name}", bare(name), "{who}", who, "{zone}", zoneName(zone))
	s := observation{verdict: store.DNSPending, code: f.code, fact: words.Replace(f.fact), fix: words.Replace(f.fix), namesWho: true}
	if f.code == "unreachable" {
		s.verdict = store.DNSUnreachable
	}
	return s
}

// list joins names for a sentence: "a, b and c".
func list(names []string) string {
	return english.WordSeries(names, "and")
}

func listAddresses(addresses map[netip.Addr]bool) string {
	var words []string
	for _, a := range slices.SortedFunc(maps.Keys(addresses), netip.Addr.Compare) {
		words = append(words, a.String())
	}
	return list(words)
}

func bareNames(names []string) (all []string) {
	for _, name := range names {
		all = append(all, bare(name))
	}
	return all
}

// bare removes the final dot of a name, except for the root's.
func bare(name string) string {
	if name == "." {
		return name
	}
	return strings.TrimSuffix(name, ".")
}

// zoneName is what sentences call a zone. The empty name is a zone that was not found.
func zoneName(zone string) string {
	switch zone {
	case "":
		return "the zone"
	case ".":
		return "the DNS root"
	}
	return bare(zone)
}

// side is a resolver or the zones' own name servers, with what it sees at the host.
type side struct {
	who string // its name in findings
	observation
}

// weigh makes one finding of what all sides see. own is the side of the zones' own name servers; it has no verdict when
// they could not be asked. caa has a code when CAA records keep the CA from issuing a certificate. The rules:
//
//  1. A resolver that cannot be reached does not count.
//  2. When some sides reach the target and others do not, the record is being added or removed: pending.
//  3. When no side reaches the target, a wrong answer counts more than no answer, and the zones' own name servers count
//     more than a resolver.
func weigh(own side, resolvers []side, caa observation) store.DNSFinding {
	resolvers = slices.DeleteFunc(resolvers, func(s side) bool { return s.verdict == store.DNSUnreachable })
	if len(resolvers) == 0 {
		return finding(store.DNSUnreachable, "unreachable", "no DNS resolver can be reached", "try again later")
	}
	first := map[store.DNSVerdict]side{}
	for _, s := range slices.Backward(resolvers) {
		first[s.verdict] = s
	}
	correct, someCorrect := first[store.DNSCorrect]
	wrong, someWrong := first[store.DNSWrong]
	pending, somePending := first[store.DNSPending]
	bogus := slices.IndexFunc(resolvers, func(s side) bool { return s.code == "dnssec_bogus" })
	allCorrect := !someWrong && !somePending

	switch {
	case allCorrect && own.verdict == store.DNSCorrect:
		return correctFinding(own.observation, caa)
	case allCorrect && own.verdict == "":
		correct.exception = own.fact
		return correctFinding(correct.observation, caa)

	// Some sides reach the target, or may reach it.
	case bogus >= 0 && !someWrong && own.verdict != store.DNSWrong:
		return oneSide(resolvers[bogus])
	case own.verdict == store.DNSCorrect && someWrong:
		return twoSides("partly_propagated", own, wrong, waitForTTL)
	case own.verdict == store.DNSCorrect && someCorrect:
		return twoSides("partly_propagated", own, pending, pending.fix)
	case own.verdict == store.DNSCorrect:
		return twoSides(pending.code, own, pending, pending.fix)
	case own.verdict == store.DNSWrong && someCorrect:
		return twoSides("record_changed", own, correct, own.fix)
	case own.code == "servers_disagree":
		return oneSide(own)
	case own.verdict == store.DNSPending && someCorrect:
		return twoSides(own.code, correct, own, own.fix)
	case someCorrect && someWrong:
		return twoSides("partly_propagated", correct, wrong, waitForTTL)
	case someCorrect:
		return twoSides("partly_propagated", correct, pending, pending.fix)

	// No side reaches it.
	case own.verdict == store.DNSWrong:
		return oneSide(own)
	case someWrong:
		wrong.namesWho = true // nothing contradicts this resolver, so the sentence does not name it
		return oneSide(wrong)
	case own.code != "":
		own.verdict = store.DNSPending
		return oneSide(own)
	default:
		return oneSide(pending)
	}
}

const waitForTTL = "resolvers keep old answers until their TTL runs out, so try again in a few minutes"

// correctFinding is the finding for a host that reaches the target. Its detail has exceptions and CAA records.
func correctFinding(s, caa observation) store.DNSFinding {
	f := finding(store.DNSCorrect, s.code, s.fact, s.exception)
	if caa.code != "" {
		f.Code = caa.code
		f.Detail += "; but " + caa.fact + "; " + caa.fix
	}
	return f
}

// oneSide is the finding when what one side sees decides.
func oneSide(s side) store.DNSFinding {
	return finding(s.verdict, s.code, s.saidBy(s.who), s.fix)
}

// twoSides is the finding when two sides see the host differently.
func twoSides(code string, a, b side, fix string) store.DNSFinding {
	return finding(store.DNSPending, code, a.saidBy(a.who)+", but "+b.saidBy(b.who), fix)
}
