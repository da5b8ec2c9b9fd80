package storetest

import (
	"slices"
	"testing"

	"mtagd/store"
	"mtagd/store/testenv"
)

var directoryTests = []test{
	{"partners and keys are in the directory when their change returns, and after reopening", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		if got, ok := b.Directory().Partner(p.ID); !ok || !samePartner(got, p) {
			t.Errorf("partner %+v, %v; want %+v", got, ok, p)
		}
		key, _ := b.key(p, 0)
		if got, ok := b.Directory().Key(key.ID); !ok || !sameKey(got, key) {
			t.Errorf("key %+v, %v; want %+v", got, ok, key)
		}
		key, err := b.RevokeKey(t.Context(), key.ID, true)
		testenv.Check(t, err)
		p = b.preverified(p, "track.acme.com")
		for when := range b.reopened {
			if got, ok := b.Directory().Key(key.ID); !ok || !sameKey(got, key) || got.RevokedAt == nil {
				t.Errorf("%s: revoked key %+v, %v; want %+v", when, got, ok, key)
			}
			if got, ok := b.Directory().Partner(p.ID); !ok || !samePartner(got, p) {
				t.Errorf("%s: partner %+v, %v; want %+v", when, got, ok, p)
			}
		}
	}},
	{"a partner's merchants with tags are in the directory when generate returns, and after reopening", func(t *testing.T, b *bed) {
		p, other := b.partner("Acme"), b.partner("Other")
		first, second, without := b.merchant(p, "First"), b.merchant(p, "Second"), b.merchant(p, "Without")
		b.tag(first, store.ClientSide, "")
		before := b.Directory().MerchantsWithTags(p.ID)
		b.tag(second, store.ClientSide, "")
		b.tag(first, store.ServerSide, "shop.com")
		b.tag(b.merchant(other, "Foreign"), store.ClientSide, "")
		if !slices.Equal(before, []store.MerchantID{first.ID}) {
			t.Errorf("before the second one the merchants are %v, want %v", before, first.ID)
		}
		for when := range b.reopened {
			got := slices.Sorted(slices.Values(b.Directory().MerchantsWithTags(p.ID)))
			if want := slices.Sorted(slices.Values([]store.MerchantID{first.ID, second.ID})); !slices.Equal(got, want) {
				t.Errorf("%s: the merchants are %v, want %v without %v", when, got, want, without.ID)
			}
		}
	}},
	{"tags and hosts are in the directory when generate returns, and after reopening", func(t *testing.T, b *bed) {
		p := b.preverified(b.partner("Acme"), "track.acme.com")
		if !b.Directory().KnowsHost("track.acme.com") {
			t.Error("the tracking domain is not known before its first tag")
		}
		m := b.merchant(p, "Shop")
		var tags []store.Tag
		for _, kind := range []store.TagType{store.ClientSide, store.ServerSide, store.Preverified} {
			tag := b.tag(m, kind, "shop.com")
			tags = append(tags, tag)
			if got, ok := b.Directory().Tag(tag.ID); !ok || !sameTag(got, tag) {
				t.Errorf("%s: %+v, %v; want %+v", kind, got, ok, tag)
			}
		}
		for when := range b.reopened {
			for _, tag := range tags {
				if got, ok := b.Directory().Tag(tag.ID); !ok || !sameTag(got, tag) {
					t.Errorf("%s: %s: %+v, %v; want %+v", when, tag.Type, got, ok, tag)
				}
				if got, ok := b.Directory().OnlyTag(tag.Host); !ok || !sameTag(got, tag) {
					t.Errorf("%s: the only tag on %q is %+v, %v; want %+v", when, tag.Host, got, ok, tag)
				}
				if tag.Host != "" && !b.Directory().KnowsHost(tag.Host) {
					t.Errorf("%s: %q is not known", when, tag.Host)
				}
			}
		}
		other := b.merchant(p, "Other")
		b.tag(other, store.ClientSide, "")
		b.tag(other, store.Preverified, "")
		for _, host := range []string{"", "track.acme.com"} {
			if got, ok := b.Directory().OnlyTag(host); ok {
				t.Errorf("there are two tags on %q, but OnlyTag gives %+v", host, got)
			}
		}
	}},
	{"the hosts of active tags and the tracking domains may have certificates, no others", func(t *testing.T, b *bed) {
		p := b.preverified(b.partner("Acme"), "track.acme.com")
		m := b.merchant(p, "Shop")
		b.tag(m, store.ClientSide, "")
		tag := b.tag(m, store.ServerSide, "shop.com")
		expectHosts := func(hosts ...string) {
			t.Helper()
			known := store.NewHosts(b.Directory())
			got := known.All()
			slices.Sort(got)
			slices.Sort(hosts)
			if !slices.Equal(got, hosts) {
				t.Errorf("hosts %q, want %q", got, hosts)
			}
			for _, host := range []string{"", "shop.com", tag.Host, "track.acme.com", "Track.acme.com"} {
				if known.MayHaveCertificate(host) != slices.Contains(hosts, host) {
					t.Errorf("MayHaveCertificate(%q) is wrong", host)
				}
			}
		}
		expectHosts("track.acme.com")
		_, err := b.UpdateTag(t.Context(), tag.ID, func(tag store.Tag) store.Tag {
			return tag.AfterVerify(store.DNSFinding{Verdict: store.DNSCorrect})
		})
		testenv.Check(t, err)
		expectHosts("track.acme.com", tag.Host)
		b.tag(m, store.Preverified, "")
		b.tag(b.merchant(p, "Other"), store.Preverified, "")
		b.reopen()
		expectHosts("track.acme.com", tag.Host)
		b.preverified(p, "t.acme.net")
		expectHosts("t.acme.net", tag.Host)
		for host, want := range map[string]int{"t.acme.net": 2, tag.Host: 1, "track.acme.com": 0, "nobody.com": 0} {
			if got := len(b.Directory().TagsOn(host)); got != want {
				t.Errorf("%d tags on %s, want %d", got, host, want)
			}
		}
	}},
	{"what is set of a tag, a merchant or a partner is in the settings of its tags alone, at once and after reopening", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		tag := b.tag(b.merchant(p, "Shop"), store.ClientSide, "")
		neighbour := b.tag(b.merchant(b.partner("Other"), "Shop"), store.ClientSide, "")
		untouched := b.Directory().Settings(&neighbour)
		setTag := func(suspended bool) {
			_, err := b.UpdateTag(t.Context(), tag.ID, func(t store.Tag) store.Tag { t.Suspended = suspended; return t })
			testenv.Check(t, err)
		}
		setMerchant := func(suspended bool, limits store.MerchantLimits) {
			got, err := b.UpdateMerchant(t.Context(), tag.Merchant, func(m store.Merchant) store.Merchant {
				m.Suspended, m.Limits, m.Tags = suspended, limits, nil
				return m
			})
			if err != nil || got.Limits != limits || len(got.Tags) != 1 {
				t.Fatalf("UpdateMerchant gives %+v, %v", got, err)
			}
		}
		setPartner := func(suspended bool, bytesPerDay store.Limit) {
			b.changePartner(p, func(p *store.Partner) { p.Suspended, p.Limits.BytesPerDay = suspended, bytesPerDay })
		}
		limits := store.MerchantLimits{EventsPerSecond: 7, BytesPerDay: store.NoLimit}
		for _, c := range []struct {
			what        string
			set         func()
			suspended   bool
			limits      store.MerchantLimits
			bytesPerDay store.Limit
		}{
			{"a tag's suspension", func() { setTag(true) }, true, store.MerchantLimits{}, 0},
			{"its end", func() { setTag(false) }, false, store.MerchantLimits{}, 0},
			{"a merchant's suspension and limits", func() { setMerchant(true, limits) }, true, limits, 0},
			{"their end", func() { setMerchant(false, store.MerchantLimits{}) }, false, store.MerchantLimits{}, 0},
			{"a partner's suspension", func() { setPartner(true, 0) }, true, store.MerchantLimits{}, 0},
			{"a partner's bytes of a day", func() { setPartner(false, 7) }, false, store.MerchantLimits{}, 7},
			{"bytes without a limit", func() { setPartner(false, store.NoLimit) }, false, store.MerchantLimits{}, store.NoLimit},
			{"no limit of the partner's own", func() { setPartner(false, 0) }, false, store.MerchantLimits{}, 0},
		} {
			c.set()
			for when := range b.reopened {
				tag, ok := b.Directory().Tag(tag.ID)
				got := b.Directory().Settings(&tag)
				if !ok || got.Suspended != c.suspended || got.Limits != c.limits || got.PartnerBytesPerDay != c.bytesPerDay {
					t.Errorf("%s: %s: %+v, %v; want suspended %v, %+v, %d", c.what, when, got, ok, c.suspended, c.limits, c.bytesPerDay)
				}
				neighbour, ok := b.Directory().Tag(neighbour.ID)
				if got := b.Directory().Settings(&neighbour); !ok || got != untouched {
					t.Errorf("%s: %s: the neighbour has %+v, %v", c.what, when, got, ok)
				}
			}
		}
	}},
	{"a merchant's secrets, and whether identifiers require one, are in the directory at once, and after reopening", func(t *testing.T, b *bed) {
		m := b.merchant(b.partner("Acme"), "Shop")
		tag := b.tag(m, store.ClientSide, "")
		secret, text := store.NewSecret(start)
		expect := func(want bool) {
			t.Helper()
			for when := range b.reopened {
				required, has := b.Directory().Settings(&tag).IdentityRequiresSecret, b.Directory().HasSecret(m.ID, text)
				if required != want || has != want {
					t.Errorf("%s: required %v, has the secret %v; want %v", when, required, has, want)
				}
				got, err := b.Merchant(t.Context(), m.ID)
				if err != nil || got.IdentityRequiresSecret != want || got.HasSecret(secret.ID) != want {
					t.Errorf("%s: %+v, %v", when, got, err)
				}
			}
		}
		expect(false)
		for _, want := range []bool{true, false} {
			if _, err := b.UpdateMerchant(t.Context(), m.ID, func(m store.Merchant) store.Merchant {
				m.IdentityRequiresSecret = want
				if want {
					return m.WithSecret(secret)
				}
				return m.WithoutSecret(secret.ID)
			}); err != nil {
				t.Fatal(err)
			}
			expect(want)
		}
	}},
	{"an update of a partner or merchant must not change whose it is, or which", func(t *testing.T, b *bed) {
		p := b.preverified(b.partner("Acme"), "track.acme.com")
		m := b.merchant(p, "Shop")
		for i, change := range []func(*store.Partner){
			func(p *store.Partner) { p.ID = store.NewPartnerID() },
			func(p *store.Partner) { p.TrackingDomain = "" },
			func(p *store.Partner) { p.CreatedAt = start.AddDate(1, 0, 0) },
		} {
			if _, err := b.UpdatePartner(t.Context(), p.ID, func(p store.Partner) store.Partner { change(&p); return p }); err == nil {
				t.Errorf("partner, change %d: no error", i)
			}
		}
		for i, change := range []func(*store.Merchant){
			func(m *store.Merchant) { m.ID = store.NewMerchantID() },
			func(m *store.Merchant) { m.Partner = store.NewPartnerID() },
			func(m *store.Merchant) { m.CreatedAt = start.AddDate(1, 0, 0) },
		} {
			if _, err := b.UpdateMerchant(t.Context(), m.ID, func(m store.Merchant) store.Merchant { change(&m); return m }); err == nil {
				t.Errorf("merchant, change %d: no error", i)
			}
		}
		if got, err := b.Merchant(t.Context(), m.ID); err != nil || !sameMerchant(got, m) {
			t.Errorf("%+v, %v; want %+v", got, err, m)
		}
	}},
}
