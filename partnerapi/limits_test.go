package partnerapi

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/edge/limit"
	"mtagd/store"
)

// newLimited returns a service with limits.
func newLimited(t *testing.T) *service {
	s := newService(t)
	s.limits = true
	s.serve(s.engine, &s.dns)
	return s
}

// limit sets limits of the partner.
func (p *partner) limit(limits store.PartnerLimits) {
	p.t.Helper()
	if _, err := p.engine.UpdatePartner(p.t.Context(), p.ID, func(p store.Partner) store.Partner {
		p.Limits = limits
		return p
	}); err != nil {
		p.t.Fatal(err)
	}
}

// retries demands a Retry-After.
func (a answer) retries(after string) answer {
	a.t.Helper()
	if got := string(a.header.Peek("Retry-After")); got != after {
		a.t.Errorf("Retry-After %q, want %q", got, after)
	}
	return a
}

func TestAPartnerThatSendsTooManyRequestsIsRefusedAlone(t *testing.T) {
	s := newLimited(t)
	p, other := s.partner("Agency"), s.partner("Other")
	p.limit(store.PartnerLimits{RequestsPerSecond: 2})
	for range 60 { // thirty seconds' worth
		p.get(config).is(200)
	}
	p.get(config).fails(429, "SERVICE_ERROR", "Too many requests. Please try again in 1 s")
	p.post(merchants, `{"name":"Shop"}`).is(429).retries("1")
	other.get(config).is(200)
	s.advance(time.Second)
	p.get(config).is(200)
	p.get(config).is(200)
	p.get(config).is(429)
	p.limit(store.PartnerLimits{RequestsPerSecond: store.NoLimit})
	for range 100 {
		p.get(config).is(200)
	}
	if n := strings.Count(s.log.String(), "cause=partner_requests"); n != 1 || !strings.Contains(s.log.String(), string(p.ID)) {
		t.Errorf("%d lines about refused requests, want one that names the partner: %s", n, s.log.String())
	}
}

// A write costs two synced writes to a disk that all share. Reads go on.
func TestAPartnerThatWritesTooMuchCanStillRead(t *testing.T) {
	s := newLimited(t)
	p := s.partner("Agency")
	p.limit(store.PartnerLimits{WritesPerMinute: 2})
	for range 6 { // three minutes' worth
		p.merchant("Shop")
	}
	p.post(merchants, `{"name":"Shop"}`).fails(429, "SERVICE_ERROR", "Too many requests that change something. Please try again in 1 s")
	p.post(generate, `{}`).is(429)
	p.post(verify, `{}`).is(429)
	p.get(merchants).is(200).has("pagination.totalItems", 6)
	s.advance(30 * time.Second)
	p.merchant("Shop")
	p.post(merchants, `{"name":"Shop"}`).is(429)
}

// A platform sets up 500 merchants at once: it creates each, generates a tag and verifies it.
func TestTheDefaultLeavesAPlatformAlone(t *testing.T) {
	s := newLimited(t)
	p := s.partner("Platform")
	s.dns.found = store.DNSFinding{Verdict: store.DNSCorrect}
	for range 1500 {
		p.post(merchants, `{}`).is(400)
	}
	for range 1000 {
		p.get(config).is(200)
	}
}

// A client without a key learns nothing more than before, and uses up nothing but its own share.
func TestAnAddressWithoutAKeyIsRefusedAndAKeyAtTheSameAddressIsNot(t *testing.T) {
	s := newLimited(t)
	p := s.partner("Agency")
	request := func(address, key string) answer {
		var r fasthttp.RequestCtx
		r.Init(new(fasthttp.Request), &net.TCPAddr{IP: net.ParseIP(address)}, nil)
		r.Request.SetRequestURI(config)
		r.Request.Header.Set("Authorization", "Bearer "+key)
		s.handle(&r)
		return answer{t, r.Response.StatusCode(), &r.Response.Header, string(r.Response.Body())}
	}
	_, wrong := store.NewKey(p.ID, s.now(), store.KeyOptions{})
	for i := range 200 {
		request("192.0.2.1", []string{"x", string(wrong), "", p.key + "x"}[i%4]).is(401)
	}
	request("192.0.2.1", string(wrong)).retries("1").
		fails(429, "SERVICE_ERROR", "Too many requests without a valid API key. Please try again in 1 s")
	request("192.0.2.1", p.key).is(200)
	request("192.0.2.2", "x").is(401)
	s.advance(time.Second)
	for range 20 {
		request("192.0.2.1", "x").is(401)
	}
	request("192.0.2.1", "x").is(429)
	if strings.Contains(s.log.String(), "192.0.2") {
		t.Errorf("the log has an address: %s", s.log.String())
	}
}

func TestAPartnerWithAsManyMerchantsAsItMayHave(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	p.limit(store.PartnerLimits{Merchants: 2})
	p.merchant("One")
	p.merchant("Two")
	p.post(merchants, `{"name":"Three"}`).fails(403, "FORBIDDEN",
		denied+": merchant cannot be created: the partner has 2 merchants, which is its limit. Ask the operator of the service for more")
	p.limit(store.PartnerLimits{Merchants: 3})
	p.merchant("Three")
}

func TestWithoutLimitsAPartnerMaySendWhatItWants(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	p.limit(store.PartnerLimits{RequestsPerSecond: 1, WritesPerMinute: 1})
	for i := range 100 {
		p.merchant(fmt.Sprint(i))
	}
	for range 300 {
		s.request("GET", config, "").is(401)
	}
}

// An engine that cannot write is logged once a minute, not once per request.
func TestUnavailabilityIsLoggedOnceWithItsCause(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	s.serve(failingEngine{s.engine, store.Unavailable("the disk is full")}, &s.dns)
	for range 100 {
		p.get(merchants).is(503)
	}
	refused := 0
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, "level=DEBUG") {
			continue
		}
		refused++
		if !strings.Contains(line, `cause=`+limit.Unavailable.String()) || !strings.Contains(line, `reason="the disk is full"`) {
			t.Errorf("logged %s", line)
		}
	}
	if refused != 1 {
		t.Errorf("%d lines, want 1", refused)
	}
}
