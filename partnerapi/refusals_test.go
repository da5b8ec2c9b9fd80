package partnerapi

import (
	"strings"
	"testing"
	"time"

	"mtagd/store"
)

// refused demands the causes of the refusals in the log, in their order. The log has the first refusal of each cause.
func (s *service) refused(causes ...string) {
	s.t.Helper()
	var got []string
	for line := range strings.Lines(s.log.String()) {
		if _, after, ok := strings.Cut(line, "msg=refused cause="); ok {
			cause, _, _ := strings.Cut(after, " ")
			got = append(got, cause)
		}
	}
	if strings.Join(got, " ") != strings.Join(causes, " ") {
		s.t.Errorf("refusals are counted as %q, want %q: %s", got, causes, s.log.String())
	}
}

// listing returns the path of a merchant's events.
func (p *partner) listing() string {
	p.t.Helper()
	id := p.merchant("Shop")
	p.generate(id, "client-side", "")
	return events + "?limit=1&merchantId=" + id
}

func TestAListingThatThePartnersMemoryRefusesIsCounted(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	path := p.listing()
	p.limit(store.PartnerLimits{AnswerBytes: 1})
	s.api.listings.timeout = time.Millisecond
	p.occupy(1)
	p.get(path).is(429).retries("1")
	s.refused("answer_memory")
}

func TestAListingThatTheMemoryOfAllRefusesIsCountedOnce(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	path := p.listing()
	s.api.listings.timeout = time.Millisecond
	s.partner("Other").occupy(listingMemory)
	p.get(path).is(503).retries("1")
	s.refused("answer_memory")
}

// occupy reserves memory for answers of the partner that are never sent.
func (p *partner) occupy(bytes int64) { p.api.listings.budget.Overdraw(p.ID, bytes) }

func TestAClientThatLeavesWhileItsListingWaitsIsNotRefused(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	path := p.listing()
	c := newClient(t)
	s.context = c.requestContext
	s.serve(s.engine, &s.dns)
	p.occupy(listingMemory)
	c.goes()
	p.get(path).is(499)
	s.refused()

	s.serve(failingEngine{s.engine, store.Unavailable("the disk is full")}, &s.dns)
	p.get(merchants).is(503)
	s.refused()
}

// noneFree returns slots of which a partner has taken all.
func noneFree(t *testing.T, partner store.PartnerID) *shares {
	t.Helper()
	taken := newSlots(1, time.Millisecond, errVerifications)
	if _, err := taken.acquire(t.Context(), partner); err != nil {
		t.Fatal(err)
	}
	return taken
}

func TestAVerificationWithoutASlotIsCounted(t *testing.T) {
	s := newService(t)
	p := s.partner("Agency")
	shop := p.shop("example.com")
	s.api.verifications = noneFree(t, p.ID)
	shop.verify().is(429).retries("1")
	s.refused("verifications")
}

// Whether a domain that led elsewhere can be had needs a verification, too.
func TestACheckOfAClaimWithoutASlotIsCounted(t *testing.T) {
	s := newService(t)
	former, other := s.partner("Agency").shop("example.com"), s.partner("Other")
	s.finds(store.DNSCorrect)
	former.verify().is(200)
	s.finds(store.DNSWrong)
	former.verify().is(400)
	s.advance(30 * day)
	s.api.verifications = noneFree(t, other.ID)
	other.ask("example.com").is(429)
	s.refused("verifications")
}
