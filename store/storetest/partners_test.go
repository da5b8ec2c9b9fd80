package storetest

import (
	"slices"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

var partnerTests = []test{
	{"partners are listed oldest first, and after reopening too", func(t *testing.T, b *bed) {
		want := []store.Partner{b.partner("Zeta"), b.partner("Alpha"), b.partner("Zeta")}
		want[1] = b.preverified(want[1], "track.alpha.com")
		if !want[0].CreatedAt.Before(want[1].CreatedAt) {
			t.Errorf("created at %v, then at %v: the engine does not use the clock it was given",
				want[0].CreatedAt, want[1].CreatedAt)
		}
		for when := range b.reopened {
			got, err := b.Partners(t.Context())
			if err != nil || !slices.EqualFunc(got, want, samePartner) {
				t.Errorf("%s: %v, %v; want %v", when, got, err, want)
			}
		}
	}},
	{"a new engine has no partners", func(t *testing.T, b *bed) {
		if got, err := b.Partners(t.Context()); err != nil || len(got) > 0 {
			t.Errorf("got %v, %v", got, err)
		}
	}},
	{"a partner's name is trimmed and must not be empty", func(t *testing.T, b *bed) {
		if p := b.partner("  Acme  "); p.Name != "Acme" || !store.IsUUIDv4(string(p.ID)) || p.PreverifiedEnabled() {
			t.Errorf("got %+v", p)
		}
		_, err := b.AddPartner(t.Context(), "  ")
		expectInvalid(t, err, "name")
	}},
	{"a key's text matches that key and no other", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		key, text := b.key(p, 0)
		other, _ := b.key(p, 0)
		if id, err := text.ID(); err != nil || id != key.ID || !text.Matches(key) || text.Matches(other) {
			t.Errorf("the text has id %q, %v; it matches its key: %v, another key: %v",
				id, err, text.Matches(key), text.Matches(other))
		}
		if key.Partner != p.ID || key.ExpiresAt != nil || key.RevokedAt != nil {
			t.Errorf("got %+v", key)
		}
	}},
	{"a partner's keys are listed oldest first, expired and revoked ones too, and after reopening", func(t *testing.T, b *bed) {
		p, other := b.partner("Acme"), b.partner("Other")
		var want []store.Key
		for _, life := range []time.Duration{0, time.Minute, time.Hour} {
			k, _ := b.key(p, life)
			want = append(want, k)
		}
		b.key(other, 0)
		if e := want[1].ExpiresAt; e == nil || !e.Equal(want[1].CreatedAt.Add(time.Minute)) {
			t.Errorf("a key of a minute made at %v expires at %v", want[1].CreatedAt, e)
		}
		b.clock.move(10 * time.Minute)
		revoked, err := b.RevokeKey(t.Context(), want[0].ID, true)
		if err != nil || revoked.RevokedAt == nil {
			t.Fatalf("revoke: %+v, %v", revoked, err)
		}
		want[0] = revoked
		for when := range b.reopened {
			got, err := b.Keys(t.Context(), p.ID)
			if err != nil || !slices.EqualFunc(got, want, sameKey) {
				t.Errorf("%s: %v, %v; want %v", when, got, err, want)
			}
		}
	}},
	{"a key that is revoked again keeps the time of the first call", func(t *testing.T, b *bed) {
		key, _ := b.key(b.partner("Acme"), 0)
		first, err := b.RevokeKey(t.Context(), key.ID, true)
		testenv.Check(t, err)
		b.clock.move(time.Hour)
		again, err := b.RevokeKey(t.Context(), key.ID, true)
		if err != nil || !sameKey(first, again) || again.Valid(b.clock.Now()) {
			t.Errorf("got %+v, %v; want %+v", again, err, first)
		}
	}},
	{"an unknown partner, key, merchant or tag is not found", func(t *testing.T, b *bed) {
		b.partner("Acme")
		expect := func(_ any, err error) {
			t.Helper()
			expectKind(t, err, store.KindNotFound)
		}
		p, m := store.NewPartnerID(), store.NewMerchantID()
		_, _, err := b.IssueKey(t.Context(), p, store.KeyOptions{})
		expectKind(t, err, store.KindNotFound)
		expect(b.Keys(t.Context(), p))
		expect(b.RevokeKey(t.Context(), "aaaaaaaaaaaa", true))
		expect(b.EnablePreverified(t.Context(), p, "track.acme.com"))
		expect(b.AddMerchant(t.Context(), p, store.NewMerchant{Name: "Shop"}))
		expect(b.UpdatePartner(t.Context(), p, func(p store.Partner) store.Partner { return p }))
		expect(b.UpdateMerchant(t.Context(), m, func(m store.Merchant) store.Merchant { return m }))
		expect(b.UpdateTag(t.Context(), store.NewTagID(store.ClientSide), func(tag store.Tag) store.Tag { return tag }))
		for _, id := range []store.MerchantID{m, "", "x", "\x00\xff"} {
			expect(b.Merchant(t.Context(), id))
		}
		for _, kind := range []store.TagType{store.ClientSide, store.ServerSide, store.Preverified} {
			_, _, err := b.GenerateTag(t.Context(), m, kind, "shop.com")
			expectKind(t, err, store.KindNotFound)
		}
	}},
	{"a tracking domain is a full host name, kept in lower case", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		for _, domain := range []string{"", "https://track.acme.com", "track", "track_1.acme.com", "-.acme.com"} {
			_, err := b.EnablePreverified(t.Context(), p.ID, domain)
			expectInvalid(t, err, "domain")
		}
		if p = b.preverified(p, "Track.Acme.COM"); p.TrackingDomain != "track.acme.com" || !p.PreverifiedEnabled() {
			t.Errorf("got %+v", p)
		}
	}},
	{"a tracking domain belongs to one partner, which may enable it again", func(t *testing.T, b *bed) {
		p, other := b.partner("Acme"), b.partner("Other")
		b.preverified(p, "track.acme.com")
		b.preverified(p, "track.acme.com")
		_, err := b.EnablePreverified(t.Context(), other.ID, "TRACK.acme.com")
		expectKind(t, err, store.KindConflict)
		b.reopen()
		_, err = b.EnablePreverified(t.Context(), other.ID, "track.acme.com")
		expectKind(t, err, store.KindConflict)
		if got, _ := b.Directory().Partner(other.ID); got.PreverifiedEnabled() {
			t.Errorf("after a conflict the partner is %+v", got)
		}
	}},
	{"when a partner moves to another tracking domain, the old one is free", func(t *testing.T, b *bed) {
		p, other := b.partner("Acme"), b.partner("Other")
		b.preverified(p, "track.acme.com")
		b.preverified(p, "track.acme.net")
		b.preverified(other, "track.acme.com")
	}},
	{"a tracking domain cannot be on a root domain that a server-side tag has registered", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		b.tag(b.merchant(p, "Shop"), store.ServerSide, "shop.com")
		for _, domain := range []string{"shop.com", "track.shop.com", "a.b.shop.com"} {
			_, err := b.EnablePreverified(t.Context(), p.ID, domain)
			expectKind(t, err, store.KindConflict)
		}
		b.preverified(p, "track.othershop.com")
	}},
	{"when several partners ask for one tracking domain at once, one gets it", func(t *testing.T, b *bed) {
		var partners []store.Partner
		for range 6 {
			partners = append(partners, b.partner("Acme"))
		}
		errs := atOnce(len(partners), func(i int) error {
			_, err := b.EnablePreverified(t.Context(), partners[i].ID, "track.acme.com")
			return err
		})
		expectOneWinner(t, errs)
	}},
}
