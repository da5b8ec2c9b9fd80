package storetest

import (
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"mtagd/store"
)

var labelPattern = regexp.MustCompile(`^mtag-[a-z0-9]{4}$`)

var tagTests = []test{
	{"a client-side tag is active and has neither record nor host", func(t *testing.T, b *bed) {
		m := b.merchant(b.partner("Acme"), "Shop")
		tag := b.tag(m, store.ClientSide, "ignored.com")
		if tag.Status() != store.Active || tag.Label != "" || tag.Domain != "" || tag.Host != "" ||
			tag.Merchant != m.ID || tag.Partner != m.Partner || tag.Type != store.ClientSide || tag.CreatedAt.Before(start) {
			t.Errorf("got %+v", tag)
		}
	}},
	{"a new server-side tag is inactive, and its host is a label under its domain", func(t *testing.T, b *bed) {
		tag := b.tag(b.merchant(b.partner("Acme"), "Shop"), store.ServerSide, "shop.com")
		if tag.Status() != store.Inactive || !labelPattern.MatchString(tag.Label) || tag.Domain != "shop.com" ||
			tag.Host != tag.Label+".shop.com" || tag.Verified || tag.Connected || tag.DNS != nil {
			t.Errorf("got %+v", tag)
		}
	}},
	{"a preverified tag is active, has a label, and its host is the partner's tracking domain", func(t *testing.T, b *bed) {
		p := b.preverified(b.partner("Acme"), "track.acme.com")
		tag := b.tag(b.merchant(p, "Shop"), store.Preverified, "ignored.com")
		if tag.Status() != store.Active || !labelPattern.MatchString(tag.Label) || tag.Domain != "" || tag.Host != "track.acme.com" {
			t.Errorf("got %+v", tag)
		}
	}},
	{"generate again returns the existing tag unchanged, whatever the domain, and after reopening too", func(t *testing.T, b *bed) {
		p := b.preverified(b.partner("Acme"), "track.acme.com")
		m := b.merchant(p, "Shop")
		b.tag(b.merchant(p, "Other"), store.ServerSide, "taken.com")
		for _, kind := range []store.TagType{store.ClientSide, store.ServerSide, store.Preverified} {
			want := b.tag(m, kind, "shop.com")
			for _, domain := range []string{"shop.com", "moved.com", "taken.com", "acme.com"} {
				got, created, err := b.GenerateTag(t.Context(), m.ID, kind, domain)
				if err != nil || created || !sameTag(got, want) {
					t.Errorf("%s on %s: %+v, created %v, %v; want %+v", kind, domain, got, created, err, want)
				}
			}
			b.reopen()
			if got, created, err := b.GenerateTag(t.Context(), m.ID, kind, "shop.com"); err != nil || created || !sameTag(got, want) {
				t.Errorf("%s after reopening: %+v, created %v, %v; want %+v", kind, got, created, err, want)
			}
		}
	}},
	{"16 calls of generate at once create one tag", func(t *testing.T, b *bed) {
		p := b.preverified(b.partner("Acme"), "track.acme.com")
		m := b.merchant(p, "Shop")
		for _, kind := range []store.TagType{store.ClientSide, store.ServerSide, store.Preverified} {
			type result struct {
				tag     store.Tag
				created bool
				err     error
			}
			results := atOnce(16, func(int) (r result) {
				r.tag, r.created, r.err = b.GenerateTag(t.Context(), m.ID, kind, "shop.com")
				return r
			})
			created := 0
			for _, r := range results {
				if r.err != nil || !sameTag(r.tag, results[0].tag) {
					t.Errorf("%s: %+v, %v; another call got %+v", kind, r.tag, r.err, results[0].tag)
				}
				if r.created {
					created++
				}
			}
			if created != 1 {
				t.Errorf("%s: %d calls return created true, want 1", kind, created)
			}
		}
		if got, err := b.Merchant(t.Context(), m.ID); err != nil || len(got.Tags) != 3 {
			t.Errorf("the merchant has %+v, %v; want 3 tags", got.Tags, err)
		}
	}},
	{"when 12 merchants ask for one domain at once, one gets it, whether the domain is new or its claim has lapsed", func(t *testing.T, b *bed) {
		former := b.tag(b.merchant(b.partner("First"), "Shop"), store.ServerSide, "lapsed.com")
		b.clock.move(7 * day)
		partners := []store.Partner{b.partner("Acme"), b.partner("Other")}
		for _, domain := range []string{"new.com", "lapsed.com"} {
			var merchants []store.Merchant
			for i := range 12 {
				merchants = append(merchants, b.merchant(partners[i%2], "Shop"))
			}
			expectOneWinner(t, atOnce(len(merchants), func(i int) error { return b.ask(merchants[i], domain) }))
			with := 0
			for _, m := range merchants {
				if m, err := b.Merchant(t.Context(), m.ID); err == nil && len(m.Tags) > 0 {
					with++
				}
			}
			if with != 1 {
				t.Errorf("%d merchants have a tag on %s, want 1", with, domain)
			}
		}
		b.expectStatus(former, store.Inactive, true)
	}},
	{"a domain that another merchant has registered is a conflict, and after reopening too", func(t *testing.T, b *bed) {
		p, other := b.partner("Acme"), b.partner("Other")
		first := b.tag(b.merchant(p, "Shop"), store.ServerSide, "shop.com")
		for _, rival := range []store.Merchant{b.merchant(p, "Same partner"), b.merchant(other, "Other partner")} {
			for range b.reopened {
				expectKind(t, b.ask(rival, "shop.com"), store.KindConflict)
			}
			if got, err := b.Merchant(t.Context(), rival.ID); err != nil || len(got.Tags) != 0 {
				t.Errorf("after a conflict the merchant has %+v, %v", got.Tags, err)
			}
			if got, ok := b.Directory().OnlyTag(first.Host); !ok || got.ID != first.ID {
				t.Errorf("after a conflict the tag on %s is %+v, %v", first.Host, got, ok)
			}
			b.tag(rival, store.ServerSide, string(rival.ID[:8])+".com") // another domain is free
		}
	}},
	{"a server-side tag cannot be on the root domain of a partner's tracking domain", func(t *testing.T, b *bed) {
		p := b.preverified(b.partner("Acme"), "track.acme.com")
		for _, m := range []store.Merchant{b.merchant(p, "Shop"), b.merchant(b.partner("Other"), "Shop")} {
			_, _, err := b.GenerateTag(t.Context(), m.ID, store.ServerSide, "acme.com")
			expectInvalid(t, err, "domain")
		}
	}},
	{"a preverified tag needs preverified access", func(t *testing.T, b *bed) {
		m := b.merchant(b.partner("Acme"), "Shop")
		b.preverified(b.partner("Other"), "track.other.com")
		_, _, err := b.GenerateTag(t.Context(), m.ID, store.Preverified, "")
		expectInvalid(t, err, "type")
	}},
	{"ids and labels of tags are unique", func(t *testing.T, b *bed) {
		p := b.preverified(b.partner("Acme"), "track.acme.com")
		ids, labels := map[store.TagID]bool{}, map[string]bool{}
		const merchants = 15
		for i := range merchants {
			m := b.merchant(p, "Shop")
			for _, kind := range []store.TagType{store.ServerSide, store.Preverified} {
				tag := b.tag(m, kind, fmt.Sprintf("shop%d.com", i))
				ids[tag.ID], labels[tag.Label] = true, true
			}
		}
		if len(ids) != 2*merchants || len(labels) != 2*merchants {
			t.Errorf("%d tags have %d ids and %d labels", 2*merchants, len(ids), len(labels))
		}
	}},
	{"a tag is read by its id, whose case matters", func(t *testing.T, b *bed) {
		want := b.tag(b.merchant(b.partner("Acme"), "Shop"), store.ServerSide, "shop.com")
		if got, err := b.Tag(t.Context(), want.ID); err != nil || !sameTag(got, want) {
			t.Errorf("got %+v, %v; want %+v", got, err, want)
		}
		for _, id := range []store.TagID{"SS_" + want.ID[3:], want.ID + "x", store.NewTagID(store.ServerSide), ""} {
			_, err := b.Tag(t.Context(), id)
			expectKind(t, err, store.KindNotFound)
		}
	}},
	{"an updated tag is the result of the change, and after reopening too", func(t *testing.T, b *bed) {
		m := b.merchant(b.partner("Acme"), "Shop")
		tag := b.tag(m, store.ServerSide, "shop.com")
		for _, want := range []store.Tag{
			tag.AfterVerify(store.DNSFinding{Verdict: store.DNSWrong, Code: "no_record", Detail: "no record", CheckedAt: start}),
			tag.AfterVerify(store.DNSFinding{Verdict: store.DNSCorrect, Code: "ok", Detail: "points here", CheckedAt: start.Add(time.Hour)}),
		} {
			got, err := b.UpdateTag(t.Context(), tag.ID, func(store.Tag) store.Tag { return want })
			if err != nil || !sameTag(got, want) {
				t.Errorf("the update returned %+v, %v; want %+v", got, err, want)
			}
			for when := range b.reopened {
				if got, err := b.Tag(t.Context(), tag.ID); err != nil || !sameTag(got, want) {
					t.Errorf("%s: %+v, %v; want %+v", when, got, err, want)
				}
				if m, err := b.Merchant(t.Context(), m.ID); err != nil || len(m.Tags) != 1 || !sameTag(m.Tags[0], want) {
					t.Errorf("%s: merchant with %+v, %v; want %+v", when, m.Tags, err, want)
				}
			}
		}
	}},
	{"no update is lost when several run at once", func(t *testing.T, b *bed) {
		tag := b.tag(b.merchant(b.partner("Acme"), "Shop"), store.ServerSide, "shop.com")
		for _, err := range atOnce(16, func(int) error {
			_, err := b.UpdateTag(t.Context(), tag.ID, func(tag store.Tag) store.Tag {
				var f store.DNSFinding
				if tag.DNS != nil {
					f = *tag.DNS
				}
				f.Detail += "x"
				return tag.AfterVerify(f)
			})
			return err
		}) {
			if err != nil {
				t.Error(err)
			}
		}
		if got, err := b.Tag(t.Context(), tag.ID); err != nil || got.DNS == nil || len(got.DNS.Detail) != 16 {
			t.Errorf("after 16 updates the tag is %+v with %+v, %v", got, got.DNS, err)
		}
	}},
	{"preverified tags move with the tracking domain, in the directory too, at once and after reopening", func(t *testing.T, b *bed) {
		p := b.preverified(b.partner("Acme"), "track.acme.com")
		m := b.merchant(p, "Shop")
		tag, client := b.tag(m, store.Preverified, ""), b.tag(m, store.ClientSide, "")
		b.preverified(p, "t.acme.net")
		tag.Host = "t.acme.net"
		for when := range b.reopened {
			if got, err := b.Tag(t.Context(), tag.ID); err != nil || !sameTag(got, tag) {
				t.Errorf("%s: %+v, %v; want %+v", when, got, err, tag)
			}
			if got, err := b.Merchant(t.Context(), m.ID); err != nil || !slices.EqualFunc(got.Tags, []store.Tag{tag, client}, sameTag) {
				t.Errorf("%s: merchant with %+v, %v", when, got.Tags, err)
			}
			if b.Directory().KnowsHost("track.acme.com") || !b.Directory().KnowsHost("t.acme.net") {
				t.Errorf("%s: the old domain is known, or the new one is not", when)
			}
			if got, ok := b.Directory().OnlyTag("t.acme.net"); !ok || !sameTag(got, tag) {
				t.Errorf("%s: the tag on the new domain is %+v, %v", when, got, ok)
			}
		}
	}},
}
