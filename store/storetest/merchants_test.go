package storetest

import (
	"fmt"
	"slices"
	"testing"

	"mtagd/store"
	"mtagd/store/testenv"
)

var merchantTests = []test{
	{"a merchant is read back as it was created, and after reopening too", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		want, err := b.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Café \"Ü\"", Domain: "cafe.example", IdentityRequiresSecret: true})
		if err != nil || want.Name != "Café \"Ü\"" || want.Domain != "cafe.example" || want.Partner != p.ID ||
			!store.IsUUIDv4(string(want.ID)) || want.CreatedAt.Before(start) || len(want.Tags) > 0 || !want.IdentityRequiresSecret {
			t.Fatalf("AddMerchant gives %+v, %v", want, err)
		}
		for when := range b.reopened {
			if got, err := b.Merchant(t.Context(), want.ID); err != nil || !sameMerchant(got, want) {
				t.Errorf("%s: %+v, %v; want %+v", when, got, err, want)
			}
			if !b.Directory().Settings(&store.Tag{Merchant: want.ID}).IdentityRequiresSecret {
				t.Errorf("%s the directory does not have the option", when)
			}
		}
	}},
	{"a partner with as many merchants as it may have gets no more, until the limit is raised", func(t *testing.T, b *bed) {
		p, other := b.partner("Acme"), b.partner("Other")
		limit := func(n store.Limit) {
			t.Helper()
			b.changePartner(p, func(p *store.Partner) { p.Limits.Merchants = n })
		}
		limit(4)
		b.merchant(p, "Shop")
		refused := 0
		for _, err := range atOnce(8, func(int) error {
			_, err := b.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Shop"})
			return err
		}) {
			if err != nil {
				expectLimited(t, err, "merchant")
				refused++
			}
		}
		_, total, err := b.Merchants(t.Context(), store.MerchantQuery{Partner: p.ID, Limit: 100})
		if refused != 5 || total != 4 || err != nil {
			t.Errorf("%d of 8 are refused, and the partner has %d merchants, %v; want 5 and 4", refused, total, err)
		}
		b.merchant(other, "Shop")
		b.reopen()
		_, err = b.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Shop"})
		expectLimited(t, err, "merchant")
		limit(store.NoLimit)
		b.merchant(p, "Shop")
	}},
	{"a merchant comes with its tags, oldest first, and after reopening too", func(t *testing.T, b *bed) {
		p := b.preverified(b.partner("Acme"), "track.acme.com")
		m := b.merchant(p, "Shop")
		want := []store.Tag{b.tag(m, store.ServerSide, "shop.com"), b.tag(m, store.Preverified, ""), b.tag(m, store.ClientSide, "")}
		for when := range b.reopened {
			if got, err := b.Merchant(t.Context(), m.ID); err != nil || !slices.EqualFunc(got.Tags, want, sameTag) {
				t.Errorf("%s: %+v, %v; want %+v", when, got.Tags, err, want)
			}
		}
	}},
	{"a partner's merchants are listed oldest first, with their tags and the total", func(t *testing.T, b *bed) {
		p, other := b.partner("Acme"), b.partner("Other")
		var all []store.Merchant
		for i := range 11 {
			m := b.merchant(p, fmt.Sprintf("Shop %d", 99-i))
			b.merchant(other, "Elsewhere")
			if i%3 == 0 {
				m.Tags = []store.Tag{b.tag(m, store.ClientSide, "")}
			}
			all = append(all, m)
		}
		for when := range b.reopened {
			for _, limit := range []int{1, 4, 11, 100} {
				for offset := 0; offset <= len(all)+limit; offset += limit {
					want := all[min(offset, len(all)):min(offset+limit, len(all))]
					got, total, err := b.Merchants(t.Context(), store.MerchantQuery{Partner: p.ID, Offset: offset, Limit: limit})
					if err != nil || total != len(all) || !slices.EqualFunc(got, want, sameMerchant) {
						t.Errorf("%s: offset %d limit %d: %v of %d, %v; want %v of %d", when, offset, limit, got, total, err, want, len(all))
					}
				}
			}
		}
	}},
	{"merchants that are created at the same time are all listed", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		b.clock.stop()
		for _, err := range atOnce(12, func(int) error {
			_, err := b.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Shop"})
			return err
		}) {
			if err != nil {
				t.Error(err)
			}
		}
		seen := map[store.MerchantID]bool{}
		for offset := 0; offset < 12; offset += 5 {
			page, _, err := b.Merchants(t.Context(), store.MerchantQuery{Partner: p.ID, Offset: offset, Limit: 5})
			testenv.Check(t, err)
			for _, m := range page {
				seen[m.ID] = true
			}
		}
		if len(seen) != 12 {
			t.Errorf("the pages have %d merchants, want 12", len(seen))
		}
	}},
	{"a partner without merchants has an empty page", func(t *testing.T, b *bed) {
		got, total, err := b.Merchants(t.Context(), store.MerchantQuery{Partner: b.partner("Acme").ID, Limit: 10})
		if err != nil || len(got) != 0 || total != 0 {
			t.Errorf("got %v of %d, %v", got, total, err)
		}
	}},
}
