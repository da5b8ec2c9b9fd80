package dns

import (
	"context"
	"errors"
	"slices"
	"strings"

	miekg "github.com/miekg/dns"
)

// The ACME challenges that the service can answer.
var challenges = []string{"http-01", "tls-alpn-01"}

// askCAA looks for CAA records that forbid the CA to issue a certificate for the host. Else its observation has no code.
//
// On the way up from the host, the first name with CAA records decides (RFC 8659, section 3). A host with a CNAME record
// has the CAA records of its target. Next comes the merchant's domain: records that were added there long ago, for the
// shop's own certificate, are the most common obstacle.
func (l *lookup) askCAA(ctx context.Context) observation {
	ctx, cancel := l.afterResolvers(ctx)
	defer cancel()
	var identities []string
	if l.CAAIdentities != nil {
		identities = l.CAAIdentities(ctx)
	}
	if len(identities) == 0 {
		return observation{}
	}

	var hosts []string
	for i, end := 0, false; !end; i, end = miekg.NextLabel(l.host, i) {
		hosts = append(hosts, l.host[i:])
	}
	answers := make([]*miekg.Msg, len(hosts))
	errs := make([]error, len(hosts))
	l.each(len(hosts), func(i int) { answers[i], errs[i] = l.anyResolver(ctx, hosts[i], miekg.TypeCAA) })

	for i, name := range hosts {
		if errors.Is(errs[i], errServfail) || errors.Is(errs[i], errBogus) {
			return observation{
				code: "ok_caa_servfail",
				fact: "the lookup of CAA records at " + bare(name) + " fails (SERVFAIL), so no CA may issue a certificate for " + bare(l.host),
				fix:  "have the name servers of " + bare(name) + " answer questions of type CAA",
			}
		}
		if errs[i] != nil {
			break
		}
		var records []*miekg.CAA
		for _, rr := range answers[i].Answer {
			if caa, ok := rr.(*miekg.CAA); ok {
				records = append(records, caa)
			}
		}
		if len(records) == 0 {
			continue
		}
		if mayIssue(records, identities) {
			break
		}
		at := bare(miekg.CanonicalName(records[0].Hdr.Name))
		return observation{
			code: "ok_caa_forbids",
			fact: "the CAA records at " + at + " forbid " + identities[0] + " to issue the certificate for " + bare(l.host),
			fix:  `add the record: ` + at + ` CAA 0 issue "` + identities[0] + `"`,
		}
	}
	return observation{}
}

// mayIssue reports whether a set of CAA records allows the CA to issue a certificate for a name without a wildcard, by
// one of our challenges (RFC 8659, section 4; RFC 8657). If a record allows only one account, mayIssue assumes that it
// is another one, such as the shop's: merchants do not know the service's account.
func mayIssue(records []*miekg.CAA, identities []string) bool {
	const critical = 128
	restricted, allowed := false, false
	for _, rr := range records {
		switch strings.ToLower(rr.Tag) {
		case "issue":
			restricted = true
			allowed = allowed || allows(rr.Value, identities)
		case "issuewild", "iodef", "issuemail":
		default:
			if rr.Flag&critical != 0 {
				return false
			}
		}
	}
	return allowed || !restricted
}

// allows reports whether the value of an "issue" record, such as "letsencrypt.org; validationmethods=http-01", names
// one of the CA's identities, allows one of our challenges and names no account.
func allows(value string, identities []string) bool {
	domain, parameters, _ := strings.Cut(value, ";")
	domain = strings.TrimSpace(domain)
	if !slices.ContainsFunc(identities, func(identity string) bool { return strings.EqualFold(domain, identity) }) {
		return false
	}
	for parameter := range strings.SplitSeq(parameters, ";") {
		tag, argument, _ := strings.Cut(parameter, "=")
		switch strings.ToLower(strings.TrimSpace(tag)) {
		case "validationmethods":
			if !slices.ContainsFunc(strings.Split(argument, ","), func(method string) bool { return slices.Contains(challenges, strings.TrimSpace(method)) }) {
				return false
			}
		case "accounturi":
			return false
		}
	}
	return true
}
