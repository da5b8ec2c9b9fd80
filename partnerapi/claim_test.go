package partnerapi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

const (
	day   = 24 * time.Hour
	taken = "Domain already registered"
)

// shop is a merchant with a server-side tag.
type shop struct {
	*partner
	merchant, tag, host string
}

func (p *partner) shop(domain string) shop {
	p.t.Helper()
	id := p.merchant("Shop")
	a := p.generate(id, "server-side", domain)
	return shop{p, id, a.str("tagId"), a.str("record.name") + "." + domain}
}

// ask asks for a domain with a new merchant.
func (p *partner) ask(domain string) answer {
	p.t.Helper()
	return p.postf(generate, `{"merchantId":%q,"type":"server-side","domain":%q}`, p.merchant("Rival"), domain)
}

func (s shop) verify() answer {
	s.t.Helper()
	return s.postf(verify, `{"tagId":%q,"subdomain":%q}`, s.tag, s.host)
}

func (s shop) read() answer {
	s.t.Helper()
	return s.get(tracktag + "/" + s.tag).is(200)
}

func TestALapsedClaimGoesToWhoeverAsksNext(t *testing.T) {
	s := newService(t)
	former, other := s.partner("Agency").shop("example.com"), s.partner("Other")
	s.advance(7*day - time.Second)
	other.ask("example.com").fails(409, "VALIDATION_ERROR", taken)
	former.read().has("domainLost", false)
	s.advance(time.Second)
	rival := other.shop("example.com")
	if len(s.dns.asked) > 0 {
		t.Errorf("DNS was asked for %s", s.dns.asked)
	}
	if log := s.log.String(); !strings.Contains(log, "domain has changed hands") || !strings.Contains(log, "from_tag="+former.tag) {
		t.Errorf("not in the log: %s", log)
	}
	former.read().has("status", "inactive").has("domainLost", true)

	// The former tag's verify gives the reason without a look at DNS.
	s.finds(store.DNSCorrect)
	former.verify().fails(409, "VALIDATION_ERROR", taken)
	if len(s.dns.asked) > 0 {
		t.Errorf("DNS was asked for %s", s.dns.asked)
	}
	rival.verify().is(200)
	s.advance(1000 * day)
	former.verify().fails(409, "VALIDATION_ERROR", taken)
	rival.read().has("status", "active").has("domainLost", false)
}

func TestATagThatHasLostItsDomainGetsItAgainByVerify(t *testing.T) {
	s := newService(t)
	former := s.partner("Agency").shop("example.com")
	s.finds(store.DNSCorrect)
	former.verify().is(200)
	if _, err := s.engine.ReleaseDomain(t.Context(), "example.com"); err != nil {
		t.Fatal(err)
	}
	former.read().has("status", "inactive").has("isVerified", false).has("domainLost", true).has("dns", nil)
	s.finds(store.DNSWrong)
	former.verify().is(400)
	former.read().has("status", "inactive").has("domainLost", true).has("dns.verdict", "wrong")
	if _, err := s.engine.Claim(t.Context(), "example.com"); store.KindOf(err) != store.KindNotFound {
		t.Errorf("a verify that failed claims the domain: %v", err)
	}
	s.finds(store.DNSCorrect)
	former.verify().is(200)
	former.read().has("status", "active").has("domainLost", false)
}

// The finding that a domain leads elsewhere may be old. So DNS is checked when another merchant asks.
func TestADomainWhoseDNSLedElsewhereIsCheckedBeforeItChangesHands(t *testing.T) {
	for _, c := range []struct {
		verdict   store.DNSVerdict
		gone      bool
		connected bool
	}{
		{store.DNSWrong, true, false},
		{store.DNSCorrect, false, true},
		{store.DNSPending, false, false},
		{store.DNSUnreachable, false, false},
	} {
		t.Run(string(c.verdict), func(t *testing.T) {
			s := newService(t)
			former, other := s.partner("Agency").shop("example.com"), s.partner("Other")
			s.finds(store.DNSCorrect)
			former.verify().is(200)
			s.finds(store.DNSWrong)
			former.verify().is(400)
			s.advance(30*day - time.Second)
			s.dns.asked = nil
			other.ask("example.com").fails(409, "VALIDATION_ERROR", taken)
			if len(s.dns.asked) > 0 {
				t.Errorf("DNS was asked for %s", s.dns.asked)
			}

			s.advance(time.Second)
			s.finds(c.verdict)
			a := other.ask("example.com")
			if got := fmt.Sprint(s.dns.asked); got != "["+former.host+"]" {
				t.Errorf("DNS was asked for %s, want %s", got, former.host)
			}
			former.read().has("domainLost", c.gone).has("isConnected", c.connected)
			if c.gone {
				a.is(200)
				former.read().has("status", "inactive")
				return
			}
			a.fails(409, "VALIDATION_ERROR", taken)
			former.read().has("status", "active")
			if claim, err := s.engine.Claim(t.Context(), "example.com"); err != nil || (claim.State == store.ClaimVerified) != c.connected {
				t.Errorf("the claim is %+v, %v", claim, err)
			}
		})
	}
}

// interruptedDNS calls during in the middle of a check, and finds DNS correct.
type interruptedDNS struct{ during func() }

func (d interruptedDNS) Verify(context.Context, string) store.DNSFinding {
	d.during()
	return store.DNSFinding{Verdict: store.DNSCorrect}
}

func TestAVerifyDuringWhichTheDomainChangesHandsIsAConflict(t *testing.T) {
	s := newService(t)
	former, other := s.partner("Agency").shop("example.com"), s.partner("Other")
	s.advance(7 * day)
	s.serve(s.engine, interruptedDNS{func() { other.ask("example.com").is(200) }})
	certs := &certificates{}
	s.certificates = certs
	former.verify().fails(409, "VALIDATION_ERROR", taken)
	former.read().has("status", "inactive").has("domainLost", true)
	if len(certs.ordered) > 0 {
		t.Errorf("certificates were ordered for %s", certs.ordered)
	}
}

func TestDomainsThatCannotBeClaimed(t *testing.T) {
	s := newService(t)
	s.claimable = store.Claimable{Reserved: []string{"api.service.com"}}
	s.serve(s.engine, &s.dns)
	p := s.partner("Agency")
	p.ask("service.com").invalid("domain", "must not be on service.com: the service's own hosts are there")
	p.ask("shop.test").invalid("domain", "must have a public top-level domain, such as com or de")
	p.postf(generate, `{"merchantId":%q,"type":"server-side","domain":"shop.test"}`, nobody).
		invalid("domain", "must have a public top-level domain, such as com or de")
	p.postf(merchants, `{"name":"Shop","domain":"shop.test"}`).is(201) // it registers nothing

	// A tag of an earlier version keeps its domain. It cannot have the domain again once it was released.
	s.claimable = store.Claimable{}
	s.claimable.AllowPrivate = true
	s.serve(s.engine, &s.dns)
	old := p.shop("service.com")
	s.claimable = store.Claimable{Reserved: []string{"api.service.com"}}
	s.serve(s.engine, &s.dns)
	s.finds(store.DNSCorrect)
	old.verify().is(200)
	if _, err := s.engine.ReleaseDomain(t.Context(), "service.com"); err != nil {
		t.Fatal(err)
	}
	old.verify().invalid("subdomain", "must not be on service.com: the service's own hosts are there")
}

func TestLimitsOfAPartner(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	limit := func(l store.PartnerLimits) {
		t.Helper()
		if _, err := s.engine.UpdatePartner(t.Context(), p.ID, func(p store.Partner) store.Partner { p.Limits = l; return p }); err != nil {
			t.Fatal(err)
		}
	}
	limit(store.PartnerLimits{UnverifiedClaims: 2})
	first := p.shop("first.com")
	p.shop("second.com")
	p.ask("third.com").fails(403, "FORBIDDEN", denied+": domain cannot be registered now: "+
		"the partner has 2 domains that are not verified yet, which is its limit. Verify one of them, "+
		"wait until one lapses (7 days after it was registered), or ask the operator of the service for more")
	p.ask("first.com").fails(409, "VALIDATION_ERROR", taken)
	first.generate(first.merchant, "server-side", "first.com") // an existing tag
	s.finds(store.DNSCorrect)
	first.verify().is(200)
	p.shop("third.com")

	limit(store.PartnerLimits{Labels: 3})
	p.ask("fourth.com").fails(403, "FORBIDDEN", denied+": type needs a label, and the partner has 3 labels, which is its limit. Ask the operator of the service for more")
	p.generate(first.merchant, "client-side", "")
}

func TestDrillTheLogWarnsOnceWhenATenthOfTheLabelsIsInUse(t *testing.T) {
	testenv.Drill(t)
	s := newService(t)
	p := s.partner("Agency")
	const warning = "many mtag-xxxx labels are in use"
	for i := range store.ManyLabels - 2 {
		s.engine.Directory().SetTag(store.Tag{ID: store.TagID(fmt.Sprint(i)), Label: "mtag-xxxx"})
	}
	p.shop("first.com")
	if log := s.log.String(); strings.Contains(log, warning) {
		t.Errorf("warned too early: %s", log)
	}
	p.shop("second.com")
	p.shop("third.com")
	if log := s.log.String(); strings.Count(log, warning) != 1 {
		t.Errorf("warned %d times, want once: %s", strings.Count(log, warning), log)
	}
}
