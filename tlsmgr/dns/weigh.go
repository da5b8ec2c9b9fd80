package dns

import (
	"slices"

	"mtagd/store"
)

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
	find := func(match func(side) bool) (side, bool) {
		if i := slices.IndexFunc(resolvers, match); i >= 0 {
			return resolvers[i], true
		}
		return side{}, false
	}
	correct, someCorrect := find(func(s side) bool { return s.verdict == store.DNSCorrect })
	wrong, someWrong := find(func(s side) bool { return s.verdict == store.DNSWrong })
	pending, somePending := find(func(s side) bool { return s.verdict == store.DNSPending })
	bogus, someBogus := find(func(s side) bool { return s.code == "dnssec_bogus" })
	allCorrect := !someWrong && !somePending

	switch {
	case allCorrect && own.verdict == store.DNSCorrect:
		return correctFinding(own.observation, caa)
	case allCorrect && own.verdict == "":
		correct.exception = own.fact
		return correctFinding(correct.observation, caa)

	// Some sides reach the target, or may reach it.
	case someBogus && !someWrong && own.verdict != store.DNSWrong:
		return oneSide(bogus)
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

// correctFinding is the finding for a host that reaches the target. Its detail adds the exception and what is wrong with
// CAA records.
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
