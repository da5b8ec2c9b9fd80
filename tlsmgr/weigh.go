package tlsmgr

import (
	"slices"

	"mtagd/store"
)

// weigh is what all that was seen comes to: own by the zones' own name servers, without a verdict when these
// could not be asked; the others by each resolver; caa what stands in a certificate's way.
//
// A resolver that cannot be reached says nothing about the host, so the rest decides. Where the target is
// reached from one side and not from another, the record is on its way there or away: pending. Where
// it is reached from nowhere, a wrong answer says more than none, and the zone's own name servers
// know more than a resolver.
func weigh(own side, resolvers []side, caa sighting) store.DNSFinding {
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
		return good(own.sighting, caa)
	case allCorrect && own.verdict == "":
		correct.remark = own.fact
		return good(correct.sighting, caa)

	// Reached from some sides, or perhaps.
	case someBogus && !someWrong && own.verdict != store.DNSWrong:
		return alone(bogus)
	case own.verdict == store.DNSCorrect && someWrong:
		return apart("partly_propagated", own, wrong, waitForTTL)
	case own.verdict == store.DNSCorrect && someCorrect:
		return apart("partly_propagated", own, pending, pending.fix)
	case own.verdict == store.DNSCorrect:
		return apart(pending.code, own, pending, pending.fix)
	case own.verdict == store.DNSWrong && someCorrect:
		return apart("record_changed", own, correct, own.fix)
	case own.code == "servers_disagree":
		return alone(own)
	case own.verdict == store.DNSPending && someCorrect:
		return apart(own.code, correct, own, own.fix)
	case someCorrect && someWrong:
		return apart("partly_propagated", correct, wrong, waitForTTL)
	case someCorrect:
		return apart("partly_propagated", correct, pending, pending.fix)

	// Reached from none.
	case own.verdict == store.DNSWrong:
		return alone(own)
	case someWrong:
		wrong.own = true // nobody says otherwise
		return alone(wrong)
	case own.code != "":
		own.verdict = store.DNSPending
		return alone(own)
	default:
		return alone(pending)
	}
}

const waitForTTL = "resolvers keep old answers until their TTL runs out, so try again in a few minutes"

// good is the finding of a host that reaches the target, with what is to be told beside that.
func good(s, caa sighting) store.DNSFinding {
	f := finding(store.DNSCorrect, s.code, s.fact, s.remark)
	if caa.code != "" {
		f.Code = caa.code
		f.Detail += "; but " + caa.fact + "; " + caa.fix
	}
	return f
}

// alone is the finding that is what one side sees.
func alone(s side) store.DNSFinding {
	return finding(s.verdict, s.code, said(s.who, s.sighting), s.fix)
}

// apart is the finding of a host that two sides see differently.
func apart(code string, a, b side, fix string) store.DNSFinding {
	return finding(store.DNSPending, code, said(a.who, a.sighting)+", but "+said(b.who, b.sighting), fix)
}
