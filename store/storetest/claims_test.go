package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

// verified stores that verify found the DNS of the tag's host correct.
func (b *bed) verified(tag store.Tag) store.Tag {
	b.t.Helper()
	return b.found(tag, store.DNSCorrect, store.Tag.AfterVerify)
}

// rechecked stores what the hourly recheck found.
func (b *bed) rechecked(tag store.Tag, v store.DNSVerdict) store.Tag {
	b.t.Helper()
	return b.found(tag, v, store.Tag.AfterRecheck)
}

func (b *bed) found(tag store.Tag, v store.DNSVerdict, after func(store.Tag, store.DNSFinding) store.Tag) store.Tag {
	b.t.Helper()
	tag, err := b.update(tag, v, after)
	testenv.Check(b.t, err)
	return tag
}

func (b *bed) update(tag store.Tag, v store.DNSVerdict, after func(store.Tag, store.DNSFinding) store.Tag) (store.Tag, error) {
	f := store.DNSFinding{Verdict: v, CheckedAt: b.clock.Now()}
	return b.UpdateTag(b.t.Context(), tag.ID, func(t store.Tag) store.Tag { return after(t, f) })
}

// ask asks for a server-side tag.
func (b *bed) ask(m store.Merchant, domain string) error {
	_, _, err := b.GenerateTag(b.t.Context(), m.ID, store.ServerSide, domain)
	return err
}

// expectStatus expects a tag's status, at once and after reopening, in the engine and in its directory.
func (b *bed) expectStatus(tag store.Tag, want store.TagStatus, claimLost bool) {
	b.t.Helper()
	for when := range b.reopened {
		got, err := b.Tag(b.t.Context(), tag.ID)
		if err != nil || got.Status() != want || got.ClaimLost != claimLost {
			b.t.Errorf("%s: the tag is %+v, %v; want it %s, claim lost: %v", when, got, err, want, claimLost)
		}
		inDirectory, _ := b.Directory().Tag(tag.ID)
		if !sameTag(inDirectory, got) {
			b.t.Errorf("%s: the directory has %+v, the engine %+v", when, inDirectory, got)
		}
		may := store.NewHosts(b.Directory()).MayHaveCertificate(tag.Host)
		if may != (want == store.Active) {
			b.t.Errorf("%s: the host of the %s tag may have a certificate: %v", when, want, may)
		}
	}
}

// expectClaim expects who has a domain, and in which state; "" for nobody.
func (b *bed) expectClaim(domain string, tag store.TagID, state store.ClaimState) store.Claim {
	b.t.Helper()
	got, err := b.Claim(b.t.Context(), domain)
	if tag == "" {
		expectKind(b.t, err, store.KindNotFound)
		return got
	}
	if err != nil || got.Tag != tag || got.Domain != domain || got.State != state {
		b.t.Errorf("the claim is %+v, %v; want tag %s, %s", got, err, tag, state)
	}
	return got
}

const day = 24 * time.Hour

var claimTests = []test{
	{"an unverified claim lapses after exactly 7 days: whoever asks next gets the domain, and the former tag stays inactive", func(t *testing.T, b *bed) {
		b.clock.stop()
		former := b.tag(b.merchant(b.partner("Acme"), "Shop"), store.ServerSide, "shop.com")
		rival := b.merchant(b.partner("Other"), "Shop")
		b.clock.move(7*day - 1)
		expectKind(t, b.ask(rival, "shop.com"), store.KindConflict)
		b.expectClaim("shop.com", former.ID, store.ClaimUnverified)
		b.clock.move(1)
		c := b.expectClaim("shop.com", former.ID, store.ClaimLapsed)
		if !c.ClaimedAt.Equal(former.CreatedAt) || !c.FreeFrom.Equal(former.CreatedAt.Add(7*day)) {
			t.Errorf("claimed at %v and free from %v; want %v and 7 days later", c.ClaimedAt, c.FreeFrom, former.CreatedAt)
		}
		b.reopen()
		taken := b.tag(rival, store.ServerSide, "shop.com")
		b.expectClaim("shop.com", taken.ID, store.ClaimUnverified)
		b.expectStatus(former, store.Inactive, true)
		b.expectStatus(b.verified(taken), store.Active, false)
		if taken.Label == former.Label {
			t.Errorf("both tags have the label %s", taken.Label)
		}
	}},
	{"a lapsed claim that no one else asked for is verified as if in time", func(t *testing.T, b *bed) {
		tag := b.tag(b.merchant(b.partner("Acme"), "Shop"), store.ServerSide, "shop.com")
		b.clock.move(100 * day)
		b.expectStatus(b.verified(tag), store.Active, false)
		expectKind(t, b.ask(b.merchant(b.partner("Other"), "Shop"), "shop.com"), store.KindConflict)
	}},
	{"generate gives a merchant whose tag has lost its claim that tag, unchanged", func(t *testing.T, b *bed) {
		m := b.merchant(b.partner("Acme"), "Shop")
		tag := b.tag(m, store.ServerSide, "shop.com")
		if _, err := b.ReleaseDomain(t.Context(), "shop.com"); err != nil {
			t.Fatal(err)
		}
		got, created, err := b.GenerateTag(t.Context(), m.ID, store.ServerSide, "shop.com")
		if err != nil || created || got.ID != tag.ID || !got.ClaimLost {
			t.Errorf("%+v, created %v, %v", got, created, err)
		}
		b.expectClaim("shop.com", "", "")
	}},
	{"a tag that has lost its claim gets it again when its DNS is verified and the domain is free", func(t *testing.T, b *bed) {
		former := b.tag(b.merchant(b.partner("Acme"), "Shop"), store.ServerSide, "shop.com")
		b.clock.move(7 * day)
		holder := b.tag(b.merchant(b.partner("Other"), "Shop"), store.ServerSide, "shop.com")

		_, err := b.update(former, store.DNSCorrect, store.Tag.AfterVerify)
		expectKind(t, err, store.KindConflict)
		b.expectStatus(former, store.Inactive, true)
		if tag := b.rechecked(former, store.DNSCorrect); tag.Status() != store.Inactive {
			t.Errorf("a recheck made the tag %+v", tag)
		}
		if tag := b.found(former, store.DNSWrong, store.Tag.AfterVerify); tag.DNS == nil || !tag.ClaimLost {
			t.Errorf("after DNS was wrong the tag is %+v", tag)
		}

		b.clock.move(7 * day)
		b.verified(former)
		b.expectStatus(former, store.Active, false)
		b.expectStatus(holder, store.Inactive, true)
		b.expectClaim("shop.com", former.ID, store.ClaimVerified)
	}},
	{"a tag that has lost its claim cannot have it again on the root domain of a tracking domain", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		tag := b.tag(b.merchant(p, "Shop"), store.ServerSide, "acme.com")
		b.clock.move(7 * day)
		b.preverified(p, "track.acme.com") // takes a lapsed claim away
		b.expectStatus(tag, store.Inactive, true)
		_, err := b.update(tag, store.DNSCorrect, store.Tag.AfterVerify)
		expectInvalid(t, err, "domain")
	}},
	{"a verified claim is free when DNS has led elsewhere for exactly 30 days", func(t *testing.T, b *bed) {
		b.clock.stop()
		former := b.verified(b.tag(b.merchant(b.partner("Acme"), "Shop"), store.ServerSide, "shop.com"))
		rival := b.merchant(b.partner("Other"), "Shop")
		b.clock.move(1000 * day)
		expectKind(t, b.ask(rival, "shop.com"), store.KindConflict)

		since := b.clock.Now()
		b.rechecked(former, store.DNSWrong)
		for range 3 { // what is found later does not move the time
			b.clock.move(day)
			b.rechecked(former, store.DNSWrong)
			b.rechecked(former, store.DNSPending)
			b.found(former, store.DNSWrong, store.Tag.AfterVerify)
			b.reopen()
		}
		c := b.expectClaim("shop.com", former.ID, store.ClaimElsewhere)
		if !c.ElsewhereSince.Equal(since) || !c.FreeFrom.Equal(since.Add(30*day)) {
			t.Errorf("elsewhere since %v, free from %v; want %v and 30 days later", c.ElsewhereSince, c.FreeFrom, since)
		}
		b.clock.move(27*day - 1)
		expectKind(t, b.ask(rival, "shop.com"), store.KindConflict)
		b.expectStatus(former, store.Active, false)
		b.clock.move(1)
		b.expectStatus(former, store.Active, false) // until someone asks
		taken := b.tag(rival, store.ServerSide, "shop.com")
		b.expectStatus(former, store.Inactive, true)
		b.expectClaim("shop.com", taken.ID, store.ClaimUnverified)
	}},
	{"a short return starts the 30 days again", func(t *testing.T, b *bed) {
		b.clock.stop()
		former := b.verified(b.tag(b.merchant(b.partner("Acme"), "Shop"), store.ServerSide, "shop.com"))
		rival := b.merchant(b.partner("Other"), "Shop")
		b.rechecked(former, store.DNSWrong)
		b.clock.move(29 * day)
		b.rechecked(former, store.DNSCorrect)
		b.expectClaim("shop.com", former.ID, store.ClaimVerified)
		b.rechecked(former, store.DNSWrong)
		b.clock.move(30*day - 1)
		expectKind(t, b.ask(rival, "shop.com"), store.KindConflict)
		b.clock.move(1)
		b.tag(rival, store.ServerSide, "shop.com")
	}},
	{"when a lapsed domain is asked for while its tag is verified, one of the two has it and is the only active one", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		for i := range 20 {
			domain := fmt.Sprintf("shop%d.com", i)
			former, rival := b.tag(b.merchant(p, "Shop"), store.ServerSide, domain), b.merchant(p, "Rival")
			b.clock.move(7 * day)
			errs := atOnce(2, func(i int) error {
				if i == 0 {
					return b.ask(rival, domain)
				}
				_, err := b.update(former, store.DNSCorrect, store.Tag.AfterVerify)
				return err
			})
			expectOneWinner(t, errs)
			got, err := b.Tag(t.Context(), former.ID)
			if err != nil || (got.Status() == store.Active) != (errs[1] == nil) || got.ClaimLost != (errs[0] == nil) {
				t.Errorf("generate: %v, verify: %v; the former tag is %+v, %v", errs[0], errs[1], got, err)
			}
		}
	}},
	{"a partner has at most 100 unverified claims, and an operator can change that", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		var tags []store.Tag
		for i := range 100 {
			tags = append(tags, b.tag(b.merchant(p, "Shop"), store.ServerSide, fmt.Sprintf("shop%d.com", i)))
		}
		m := b.merchant(p, "One more")
		full := func(when string) {
			t.Helper()
			err := b.ask(m, "more.com")
			if store.KindOf(err) != store.KindLimited {
				t.Errorf("%s: %v", when, err)
			}
			expectLimited(t, err, "domain")
			b.expectClaim("more.com", "", "")
		}
		full("at once")
		b.kill()
		full("after a kill")
		b.tag(b.merchant(b.partner("Other"), "Shop"), store.ServerSide, "other.com") // other partners are not concerned
		b.tag(m, store.ClientSide, "")                                               // nor are other types

		limit := func(n store.Limit) {
			t.Helper()
			b.changePartner(p, func(p *store.Partner) { p.Limits.UnverifiedClaims = n })
		}
		limit(101)
		b.tag(m, store.ServerSide, "more.com")
		limit(0)

		m = b.merchant(p, "After a verify")
		b.verified(tags[0]) // 100 are left
		expectLimited(t, b.ask(m, "verified.com"), "domain")
		b.verified(tags[1])
		b.tag(m, store.ServerSide, "verified.com")

		m = b.merchant(p, "After a release")
		expectLimited(t, b.ask(m, "released.com"), "domain")
		if _, err := b.ReleaseDomain(t.Context(), "shop2.com"); err != nil {
			t.Fatal(err)
		}
		b.tag(m, store.ServerSide, "released.com")

		m = b.merchant(p, "After a week")
		expectLimited(t, b.ask(m, "lapsed.com"), "domain")
		b.clock.move(7 * day)
		b.tag(m, store.ServerSide, "lapsed.com")
		if n := len(b.claims(p.ID)); n != 103 {
			t.Errorf("the partner has %d claims, want 103", n)
		}
	}},
	{"of 20 requests at once, a partner with room for 5 unverified claims gets 5", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		b.changePartner(p, func(p *store.Partner) { p.Limits.UnverifiedClaims = 5 })
		var merchants []store.Merchant
		for range 20 {
			merchants = append(merchants, b.merchant(p, "Shop"))
		}
		got := 0
		for _, err := range atOnce(20, func(i int) error { return b.ask(merchants[i], fmt.Sprintf("shop%d.com", i)) }) {
			if err == nil {
				got++
			} else {
				expectLimited(t, err, "domain")
			}
		}
		if got != 5 {
			t.Errorf("%d got a tag", got)
		}
	}},
	{"a partner has at most its limit of labels, which lost claims do not give back", func(t *testing.T, b *bed) {
		p := b.preverified(b.partner("Acme"), "track.acme.com")
		b.changePartner(p, func(p *store.Partner) { p.Limits.Labels = 3 })
		b.tag(b.merchant(p, "A"), store.Preverified, "")
		b.tag(b.merchant(p, "B"), store.ServerSide, "b.com")
		b.tag(b.merchant(p, "C"), store.ServerSide, "c.com")
		if _, err := b.ReleaseDomain(t.Context(), "c.com"); err != nil {
			t.Fatal(err)
		}
		m := b.merchant(p, "D")
		for _, when := range []string{"at once", "after a kill"} {
			_, _, err := b.GenerateTag(t.Context(), m.ID, store.Preverified, "")
			expectLimited(t, err, "type")
			expectLimited(t, b.ask(m, "d.com"), "type")
			if n := b.Directory().Labels(); n != 3 {
				t.Errorf("%s: the directory counts %d labels, want 3", when, n)
			}
			b.kill()
		}
		b.tag(m, store.ClientSide, "")
	}},
	{"a released domain has no claim, its tag is inactive, and the next to ask gets it", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		tag := b.verified(b.tag(b.merchant(p, "Shop"), store.ServerSide, "shop.com"))
		want := b.expectClaim("shop.com", tag.ID, store.ClaimVerified)
		got, err := b.ReleaseDomain(t.Context(), "shop.com")
		if err != nil || got != want {
			t.Errorf("released %+v, %v; want %+v", got, err, want)
		}
		b.expectStatus(tag, store.Inactive, true)
		b.expectClaim("shop.com", "", "")
		_, err = b.ReleaseDomain(t.Context(), "shop.com")
		expectKind(t, err, store.KindNotFound)
		b.kill()
		b.expectStatus(tag, store.Inactive, true)
		b.tag(b.merchant(b.partner("Other"), "Shop"), store.ServerSide, "shop.com")
	}},
	{"claims are listed in the order of their domains, of one partner or of all, and after reopening too", func(t *testing.T, b *bed) {
		p, other := b.preverified(b.partner("Acme"), "track.acme.com"), b.partner("Other")
		m := b.merchant(p, "Shop")
		tags := map[string]store.Tag{
			"b.com": b.tag(m, store.ServerSide, "b.com"),
			"a.com": b.tag(b.merchant(p, "Shop"), store.ServerSide, "a.com"),
			"c.com": b.tag(b.merchant(other, "Shop"), store.ServerSide, "c.com"),
		}
		b.tag(m, store.Preverified, "")
		b.tag(m, store.ClientSide, "")
		for range b.reopened {
			for _, c := range []struct {
				partner store.PartnerID
				want    []string
			}{{p.ID, []string{"a.com", "b.com"}}, {other.ID, []string{"c.com"}}, {"", []string{"a.com", "b.com", "c.com"}}, {"nobody", nil}} {
				var got []string
				for _, claim := range b.claims(c.partner) {
					got = append(got, claim.Domain)
					tag := tags[claim.Domain]
					if claim.Tag != tag.ID || claim.Merchant != tag.Merchant || claim.Partner != tag.Partner || claim.Host != tag.Host {
						t.Errorf("claim %+v; tag %+v", claim, tag)
					}
				}
				if !slices.Equal(got, c.want) {
					t.Errorf("partner %q has %q, want %q", c.partner, got, c.want)
				}
			}
		}
	}},
	{"a tracking domain takes a free claim away, and no other", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		tag := b.tag(b.merchant(p, "Shop"), store.ServerSide, "acme.com")
		_, err := b.EnablePreverified(t.Context(), p.ID, "track.acme.com")
		expectKind(t, err, store.KindConflict)
		b.clock.move(7 * day)
		b.preverified(p, "track.acme.com")
		b.expectStatus(tag, store.Inactive, true)
		b.expectClaim("acme.com", "", "")
	}},
	{"an update must not change a tag's claim", func(t *testing.T, b *bed) {
		tag := b.tag(b.merchant(b.partner("Acme"), "Shop"), store.ServerSide, "shop.com")
		for i, change := range []func(store.Tag) store.Tag{
			store.Tag.LoseClaim,
			func(tag store.Tag) store.Tag { return tag.TakeClaim(start.AddDate(1, 0, 0)) },
		} {
			if _, err := b.UpdateTag(t.Context(), tag.ID, change); err == nil {
				t.Errorf("change %d: no error", i)
			}
		}
		b.expectClaim("shop.com", tag.ID, store.ClaimUnverified)
	}},
}

func (b *bed) claims(partner store.PartnerID) []store.Claim {
	b.t.Helper()
	claims, err := b.Claims(b.t.Context(), partner)
	testenv.Check(b.t, err)
	return claims
}
