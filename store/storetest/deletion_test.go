package storetest

import (
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

var deletionTests = []test{
	{"a deleted merchant is gone with its tags, claims, labels and events, after reopening and a kill too", func(t *testing.T, b *bed) {
		p, other := b.preverified(b.partner("Acme"), "track.acme.com"), b.partner("Other")
		m, kept := b.merchant(p, "Shop"), b.merchant(p, "Kept")
		server := b.tag(m, store.ServerSide, "shop.com")
		tags := []store.Tag{server, b.tag(m, store.ClientSide, ""), b.tag(m, store.Preverified, "")}
		keptTag := b.tag(kept, store.ClientSide, "")
		b.record([]store.Mark{mark(m.ID, tags[1].ID, "user-1"), mark(kept.ID, keptTag.ID, "user-1")}, store.Recorded, store.Recorded)
		labels := b.Directory().Labels()
		if got, err := b.DeleteMerchant(t.Context(), m.ID); err != nil || got.ID != m.ID || len(got.Tags) != 3 {
			t.Fatalf("DeleteMerchant gives %+v, %v", got, err)
		}
		for _, again := range []func(){b.reopen, b.kill, func() {}} {
			_, err := b.Merchant(t.Context(), m.ID)
			expectKind(t, err, store.KindNotFound)
			for _, tag := range tags {
				_, err := b.Tag(t.Context(), tag.ID)
				expectKind(t, err, store.KindNotFound)
				if _, ok := b.Directory().Tag(tag.ID); ok {
					t.Errorf("%s is in the directory", tag.ID)
				}
			}
			if b.Directory().KnowsHost(server.Host) || !b.Directory().KnowsHost("track.acme.com") {
				t.Error("the host of the server-side tag is known, or the tracking domain is not")
			}
			if only, ok := b.Directory().OnlyTag(""); !ok || only.ID != keptTag.ID {
				t.Errorf("the only client-side tag is %+v, %v", only, ok)
			}
			if n := b.Directory().Labels(); n != labels-2 {
				t.Errorf("%d labels, want %d", n, labels-2)
			}
			if page, total, err := b.Merchants(t.Context(), store.MerchantQuery{Partner: p.ID, Limit: 10}); err != nil || total != 1 || page[0].ID != kept.ID {
				t.Errorf("the merchants are %v of %d, %v", page, total, err)
			}
			b.expectEvents(m.ID, 0)
			b.expectEvents(kept.ID, 1)
			_, err = b.DeleteMerchant(t.Context(), m.ID)
			expectKind(t, err, store.KindNotFound)
			again()
		}
		b.tag(b.merchant(other, "Next"), store.ServerSide, "shop.com")
	}},
	{"a deletion is in the audit log", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		m := b.merchant(p, "Shop")
		if _, err := b.DeletePartner(t.Context(), p.ID, true); err != nil {
			t.Fatal(err)
		}
		entries, err := b.Audit(t.Context(), store.AuditQuery{Limit: 2})
		if err != nil || len(entries) != 2 || entries[0].Action != store.PartnerDeleted || entries[0].Partner != p.ID ||
			entries[1].Action != store.MerchantDeleted || entries[1].Merchant != m.ID || entries[1].Partner != p.ID {
			t.Errorf("the log ends with %+v, %v", entries, err)
		}
	}},
	{"a partner is deleted with its keys, and with its merchants only when that is asked for", func(t *testing.T, b *bed) {
		p := b.preverified(b.partner("Acme"), "track.acme.com")
		key, text := b.key(p, 0)
		m := b.merchant(p, "Shop")
		tag := b.tag(m, store.ServerSide, "shop.com")
		_, err := b.DeletePartner(t.Context(), p.ID, false)
		expectKind(t, err, store.KindConflict)
		if got, err := b.Merchant(t.Context(), m.ID); err != nil || len(got.Tags) != 1 {
			t.Errorf("after a conflict: %+v, %v", got, err)
		}
		if got, err := b.DeletePartner(t.Context(), p.ID, true); err != nil || got.ID != p.ID {
			t.Fatalf("DeletePartner gives %+v, %v", got, err)
		}
		for range b.reopened {
			if partners, err := b.Partners(t.Context()); err != nil || len(partners) > 0 {
				t.Errorf("the partners are %v, %v", partners, err)
			}
			if _, _, ok := b.Directory().Authenticate(text, b.clock.Now()); ok {
				t.Error("its key is valid")
			}
			if _, ok := b.Directory().Key(key.ID); ok {
				t.Error("its key is in the directory")
			}
			if b.Directory().KnowsHost("track.acme.com") || b.Directory().KnowsHost(tag.Host) {
				t.Error("a host of it is known")
			}
			_, err = b.Merchant(t.Context(), m.ID)
			expectKind(t, err, store.KindNotFound)
			_, err = b.DeletePartner(t.Context(), p.ID, true)
			expectKind(t, err, store.KindNotFound)
		}
		b.preverified(b.partner("Next"), "track.acme.com")
	}},
	{"a deleted merchant leaves room for another", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		b.changePartner(p, func(p *store.Partner) { p.Limits.Merchants = 1 })
		m := b.merchant(p, "Shop")
		_, err := b.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Other"})
		expectLimited(t, err, "merchant")
		if _, err := b.DeleteMerchant(t.Context(), m.ID); err != nil {
			t.Fatal(err)
		}
		b.merchant(p, "Other")
	}},
}

var repeatTests = []test{
	{"a merchant that is created again with the same idempotency key is the same, after reopening too", func(t *testing.T, b *bed) {
		p, other := b.partner("Acme"), b.partner("Other")
		n := store.NewMerchant{Name: "Shop", Domain: "shop.com", Once: "order 7"}
		want, err := b.AddMerchant(t.Context(), p.ID, n)
		testenv.Check(t, err)
		b.changeMerchant(want.ID, func(m *store.Merchant) { m.Name = "Renamed" })
		for range b.reopened {
			if got, err := b.AddMerchant(t.Context(), p.ID, n); err != nil || !sameMerchant(got, want) {
				t.Errorf("again: %+v, %v; want %+v", got, err, want)
			}
			for _, different := range []store.NewMerchant{{Name: "Shoes", Domain: "shop.com", Once: n.Once}, {Name: "Shop", Once: n.Once},
				{Name: "Shop", Domain: "shop.com", IdentityRequiresSecret: true, Once: n.Once}} {
				_, err := b.AddMerchant(t.Context(), p.ID, different)
				expectKind(t, err, store.KindMismatch)
			}
			_, _, err = b.IssueKey(t.Context(), p.ID, store.KeyOptions{Once: n.Once})
			expectKind(t, err, store.KindMismatch)
		}
		if got, err := b.AddMerchant(t.Context(), other.ID, n); err != nil || got.ID == want.ID {
			t.Errorf("of another partner: %+v, %v", got, err)
		}
		b.clock.move(store.OnceWindow)
		if got, err := b.AddMerchant(t.Context(), p.ID, n); err != nil || got.ID == want.ID {
			t.Errorf("a day later: %+v, %v", got, err)
		}
	}},
	{"calls with the same idempotency key at once create one merchant", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		ids := map[store.MerchantID]bool{}
		for _, id := range atOnce(8, func(int) store.MerchantID {
			m, err := b.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Shop", Once: "x"})
			if err != nil {
				t.Error(err)
			}
			return m.ID
		}) {
			ids[id] = true
		}
		if _, total, err := b.Merchants(t.Context(), store.MerchantQuery{Partner: p.ID, Limit: 1}); len(ids) != 1 || total != 1 || err != nil {
			t.Errorf("%d ids, %d merchants, %v", len(ids), total, err)
		}
	}},
	{"a key is issued once for an idempotency key", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		opt := store.KeyOptions{Name: "backend", Once: "x"}
		if _, _, err := b.IssueKey(t.Context(), p.ID, opt); err != nil {
			t.Fatal(err)
		}
		_, _, err := b.IssueKey(t.Context(), p.ID, opt)
		expectKind(t, err, store.KindMismatch)
		if keys, err := b.Keys(t.Context(), p.ID); err != nil || len(keys) != 1 {
			t.Errorf("%d keys, %v", len(keys), err)
		}
	}},
}

var keyTests = []test{
	{"a key has its name and scope, after reopening too", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		key, text, err := b.IssueKey(t.Context(), p.ID, store.KeyOptions{Name: "Looker", Scope: store.ReadOnly, Personal: true, ExpiresIn: time.Hour})
		testenv.Check(t, err)
		for range b.reopened {
			_, got, ok := b.Directory().Authenticate(text, b.clock.Now())
			if !ok || got.ID != key.ID || got.Name != "Looker" || got.Scope != store.ReadOnly || !got.Personal {
				t.Errorf("got %+v, %v", got, ok)
			}
		}
	}},
	{"the last use of a key is known, after reopening too", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		_, text := b.key(p, 0)
		unused, _ := b.key(p, 0)
		used := b.clock.Now()
		if _, _, ok := b.Directory().Authenticate(text, used); !ok {
			t.Fatal("the key is not valid")
		}
		for range b.reopened {
			keys, err := b.Keys(t.Context(), p.ID)
			if err != nil || len(keys) != 2 {
				t.Fatal(keys, err)
			}
			for _, k := range keys {
				if k.ID == unused.ID != k.LastUsedAt.IsZero() || k.ID != unused.ID && used.Sub(k.LastUsedAt).Abs() > store.KeyUseDelay {
					t.Errorf("%+v; it was used at %v", k, used)
				}
			}
		}
	}},
	{"the last full key is revoked only when that is meant", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		first, _ := b.key(p, 0)
		if _, _, err := b.IssueKey(t.Context(), p.ID, store.KeyOptions{Scope: store.ReadOnly}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := b.IssueKey(t.Context(), p.ID, store.KeyOptions{ExpiresIn: time.Nanosecond}); err != nil {
			t.Fatal(err)
		}
		_, err := b.RevokeKey(t.Context(), first.ID, false)
		expectKind(t, err, store.KindConflict)
		second, _ := b.key(p, 0)
		failed := 0
		for _, err := range atOnce(2, func(i int) error {
			_, err := b.RevokeKey(t.Context(), []store.KeyID{first.ID, second.ID}[i], false)
			return err
		}) {
			if err != nil {
				expectKind(t, err, store.KindConflict)
				failed++
			}
		}
		if failed != 1 {
			t.Errorf("%d of 2 revocations at once failed, want 1", failed)
		}
		for _, id := range []store.KeyID{first.ID, second.ID} {
			if _, err := b.RevokeKey(t.Context(), id, true); err != nil {
				t.Error(err)
			}
		}
	}},
	{"a partner has a bounded number of keys", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		var last store.Key
		for range store.MaxKeys {
			last, _ = b.key(p, 0)
		}
		_, _, err := b.IssueKey(t.Context(), p.ID, store.KeyOptions{})
		expectLimited(t, err, "key")
		if _, err := b.RevokeKey(t.Context(), last.ID, false); err != nil {
			t.Fatal(err)
		}
		b.key(p, 0)
	}},
}

var searchTests = []test{
	{"merchants are found by parts of their names and domains, in any case", func(t *testing.T, b *bed) {
		p, other := b.partner("Acme"), b.partner("Other")
		b.merchant(other, "Shoe shop")
		add := func(name, domain string) store.Merchant {
			m, err := b.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: name, Domain: domain})
			testenv.Check(t, err)
			return m
		}
		shoes, hats, bags := add("Shoe shop", "shoes.com"), add("HATS & Co", ""), add("Café Ünique ΣΊΣΥΦΟΣ", "bags.shoes.org")
		b.tag(hats, store.ServerSide, "hats.net")
		for _, c := range []struct {
			q    store.MerchantQuery
			want []store.MerchantID
		}{
			{store.MerchantQuery{Name: "shoe"}, []store.MerchantID{shoes.ID}},
			{store.MerchantQuery{Name: "hats &"}, []store.MerchantID{hats.ID}},
			{store.MerchantQuery{Name: "ÜNIQUE"}, []store.MerchantID{bags.ID}},
			{store.MerchantQuery{Name: "σίσυφος"}, []store.MerchantID{bags.ID}},
			{store.MerchantQuery{Name: "h"}, []store.MerchantID{shoes.ID, hats.ID}},
			{store.MerchantQuery{Name: "nobody"}, nil},
			{store.MerchantQuery{Domain: "SHOES"}, []store.MerchantID{shoes.ID, bags.ID}},
			{store.MerchantQuery{Domain: "hats.net"}, []store.MerchantID{hats.ID}},
			{store.MerchantQuery{Name: "shop", Domain: "shoes"}, []store.MerchantID{shoes.ID}},
		} {
			for offset := range len(c.want) + 1 {
				q := c.q
				q.Partner, q.Offset, q.Limit = p.ID, offset, 1
				page, total, err := b.Merchants(t.Context(), q)
				if err != nil || total != len(c.want) || len(page) != min(1, len(c.want)-offset) || len(page) == 1 && page[0].ID != c.want[offset] {
					t.Errorf("%+v: %v of %d, %v; want %v", q, page, total, err, c.want)
				}
			}
		}
	}},
	{"a merchant's retention is read back, after reopening too", func(t *testing.T, b *bed) {
		m := b.merchant(b.partner("Acme"), "Shop")
		for _, want := range []store.Retention{30, store.Forever, 0} {
			b.changeMerchant(m.ID, func(m *store.Merchant) { m.Retention = want })
			b.reopen()
			if got, err := b.Merchant(t.Context(), m.ID); err != nil || got.Retention != want {
				t.Errorf("%v, %v; want %v", got.Retention, err, want)
			}
		}
	}},
}
