package storetest

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"mtagd/store"
)

// AuditLimits are what engines must be opened with: with those outside of tests, the log would be full after a million changes.
var AuditLimits = store.AuditLimits{Partners: 120, PartnerAge: day, Operators: 60, OperatorAge: 30 * day}

// auditLog returns the whole audit log, oldest entry first.
func (b *bed) auditLog() []store.AuditEntry {
	b.t.Helper()
	entries, err := b.Audit(b.t.Context(), store.AuditQuery{Limit: 10_000})
	if err != nil {
		b.t.Fatalf("audit: %v", err)
	}
	slices.Reverse(entries)
	return entries
}

// expectAudit expects the entries that follow the first n of the audit log. Their numbers and times are not compared.
func (b *bed) expectAudit(n int, want ...store.AuditEntry) {
	b.t.Helper()
	all := b.auditLog()
	if len(all) != n+len(want) {
		b.t.Errorf("%d new audit entries, want %d", len(all)-n, len(want))
		return
	}
	for i, got := range all[n:] {
		got.ID, got.At = 0, time.Time{}
		if got != want[i] {
			b.t.Errorf("audit entry %d is\n%+v, want\n%+v", i, got, want[i])
		}
	}
}

var auditTests = []test{
	{"each change of control data is in the audit log with its actor, and after reopening", func(t *testing.T, b *bed) {
		actor := store.Actor{Kind: store.ByKey, Name: "aaaaaaaaaaaa", Request: "request-1"}
		ctx := store.WithActor(t.Context(), actor)
		var p store.Partner
		var key store.Key
		var m store.Merchant
		var tag, pv store.Tag
		updatePartner := func(change func(p *store.Partner)) (err error) {
			p, err = b.UpdatePartner(ctx, p.ID, func(p store.Partner) store.Partner { change(&p); return p })
			return err
		}
		updateMerchant := func(change func(m *store.Merchant)) (err error) {
			m, err = b.UpdateMerchant(ctx, m.ID, func(m store.Merchant) store.Merchant { change(&m); return m })
			return err
		}
		updateTag := func(change func(t store.Tag) store.Tag) (err error) {
			tag, err = b.UpdateTag(ctx, tag.ID, change)
			return err
		}
		wrong := store.DNSFinding{Verdict: store.DNSWrong, Code: "no_record", Detail: "There is no record."}
		correct := store.DNSFinding{Verdict: store.DNSCorrect, Code: "ok", Detail: "It is right."}
		secret, _ := store.NewSecret(start)

		for _, c := range []struct {
			change string
			do     func() error
			want   func() []store.AuditEntry // without the actor
		}{
			{"AddPartner", func() (err error) { p, err = b.AddPartner(ctx, "Acme"); return err },
				func() []store.AuditEntry { return []store.AuditEntry{{Action: "partner.added", Partner: p.ID}} }},
			{"IssueKey", func() (err error) { key, _, err = b.IssueKey(ctx, p.ID, store.KeyOptions{}); return err },
				func() []store.AuditEntry {
					return []store.AuditEntry{{Action: "key.issued", Partner: p.ID, Key: key.ID}}
				}},
			{"IssueKey for personal data", func() (err error) {
				key, _, err = b.IssueKey(ctx, p.ID, store.KeyOptions{Scope: store.ReadOnly, Personal: true})
				return err
			},
				func() []store.AuditEntry {
					return []store.AuditEntry{{Action: "key.issued", Partner: p.ID, Key: key.ID, Detail: "read, personal data"}}
				}},
			{"RevokeKey", func() (err error) { key, err = b.RevokeKey(ctx, key.ID, true); return err },
				func() []store.AuditEntry {
					return []store.AuditEntry{{Action: "key.revoked", Partner: p.ID, Key: key.ID}}
				}},
			{"EnablePreverified", func() (err error) { p, err = b.EnablePreverified(ctx, p.ID, "track.acme.com"); return err },
				func() []store.AuditEntry {
					return []store.AuditEntry{{Action: "partner.preverified", Partner: p.ID, Detail: "track.acme.com"}}
				}},
			{"a move of the tracking domain", func() (err error) { p, err = b.EnablePreverified(ctx, p.ID, "track.acme.net"); return err },
				func() []store.AuditEntry {
					return []store.AuditEntry{{Action: "partner.preverified", Partner: p.ID, Detail: "track.acme.net"}}
				}},
			{"suspension of a partner", func() error { return updatePartner(func(p *store.Partner) { p.Suspended = true }) },
				func() []store.AuditEntry { return []store.AuditEntry{{Action: "partner.suspended", Partner: p.ID}} }},
			{"several changes of a partner", func() error {
				return updatePartner(func(p *store.Partner) {
					p.Suspended, p.Name = false, "Acme Limited"
					p.Limits = store.PartnerLimits{RequestsPerSecond: 7, Labels: store.NoLimit}
				})
			}, func() []store.AuditEntry {
				return []store.AuditEntry{
					{Action: "partner.limited", Partner: p.ID, Detail: `{"requestsPerSecond":7,"labels":"off"}`},
					{Action: "partner.resumed", Partner: p.ID},
					{Action: "partner.changed", Partner: p.ID, Detail: "name"},
				}
			}},
			{"AddMerchant", func() (err error) {
				m, err = b.AddMerchant(ctx, p.ID, store.NewMerchant{Name: "Shop", Domain: "shop.com", IdentityRequiresSecret: true})
				return err
			},
				func() []store.AuditEntry {
					return []store.AuditEntry{{Action: "merchant.created", Partner: p.ID, Merchant: m.ID, Detail: "shop.com, requires a secret"}}
				}},
			{"several changes of a merchant", func() error {
				return updateMerchant(func(m *store.Merchant) {
					m.Suspended, m.Name, m.Domain = true, "Other", "other.com"
					m.Limits.EventsPerSecond = 5
				})
			}, func() []store.AuditEntry {
				return []store.AuditEntry{
					{Action: "merchant.limited", Partner: p.ID, Merchant: m.ID, Detail: `{"eventsPerSecond":5}`},
					{Action: "merchant.suspended", Partner: p.ID, Merchant: m.ID},
					{Action: "merchant.changed", Partner: p.ID, Merchant: m.ID, Detail: "domain, name"},
				}
			}},
			{"a merchant's secrets", func() error {
				return updateMerchant(func(m *store.Merchant) {
					*m = m.WithSecret(secret)
				})
			}, func() []store.AuditEntry {
				return []store.AuditEntry{
					{Action: "merchant.secrets", Partner: p.ID, Merchant: m.ID, Detail: string(secret.ID)},
				}
			}},
			{"without the option and its secrets", func() error {
				return updateMerchant(func(m *store.Merchant) { m.IdentityRequiresSecret, m.Secrets = false, nil })
			}, func() []store.AuditEntry {
				return []store.AuditEntry{
					{Action: "merchant.identity", Partner: p.ID, Merchant: m.ID, Detail: "requires no secret"},
					{Action: "merchant.secrets", Partner: p.ID, Merchant: m.ID},
				}
			}},
			{"lifting what was set", func() error {
				return updateMerchant(func(m *store.Merchant) { m.Suspended, m.Limits = false, store.MerchantLimits{} })
			}, func() []store.AuditEntry {
				return []store.AuditEntry{
					{Action: "merchant.limited", Partner: p.ID, Merchant: m.ID},
					{Action: "merchant.resumed", Partner: p.ID, Merchant: m.ID},
				}
			}},
			{"GenerateTag", func() (err error) {
				if tag, _, err = b.GenerateTag(ctx, m.ID, store.ServerSide, "shop.com"); err == nil {
					pv, _, err = b.GenerateTag(ctx, m.ID, store.Preverified, "")
				}
				return err
			}, func() []store.AuditEntry {
				return []store.AuditEntry{
					{Action: "tag.generated", Partner: p.ID, Merchant: m.ID, Tag: tag.ID, Detail: tag.Label + ".shop.com"},
					{Action: "tag.generated", Partner: p.ID, Merchant: m.ID, Tag: pv.ID, Detail: "track.acme.net"},
				}
			}},
			{"the first correct verify", func() error { return updateTag(func(t store.Tag) store.Tag { return t.AfterVerify(correct) }) },
				func() []store.AuditEntry {
					return []store.AuditEntry{{Action: "tag.verified", Partner: p.ID, Merchant: m.ID, Tag: tag.ID, Detail: tag.Host}}
				}},
			{"DNS that leads elsewhere", func() error { return updateTag(func(t store.Tag) store.Tag { return t.AfterRecheck(wrong) }) },
				func() []store.AuditEntry {
					return []store.AuditEntry{{Action: "tag.disconnected", Partner: p.ID, Merchant: m.ID, Tag: tag.ID, Detail: "no_record"}}
				}},
			{"DNS that is right again", func() error { return updateTag(func(t store.Tag) store.Tag { return t.AfterRecheck(correct) }) },
				func() []store.AuditEntry {
					return []store.AuditEntry{{Action: "tag.connected", Partner: p.ID, Merchant: m.ID, Tag: tag.ID}}
				}},
			{"suspension of a tag", func() error { return updateTag(func(t store.Tag) store.Tag { t.Suspended = true; return t }) },
				func() []store.AuditEntry {
					return []store.AuditEntry{{Action: "tag.suspended", Partner: p.ID, Merchant: m.ID, Tag: tag.ID}}
				}},
			{"lifting it", func() error { return updateTag(func(t store.Tag) store.Tag { t.Suspended = false; return t }) },
				func() []store.AuditEntry {
					return []store.AuditEntry{{Action: "tag.resumed", Partner: p.ID, Merchant: m.ID, Tag: tag.ID}}
				}},
		} {
			before := len(b.auditLog())
			if err := c.do(); err != nil {
				t.Fatalf("%s: %v", c.change, err)
			}
			want := c.want()
			for i := range want {
				want[i].Actor = actor
			}
			b.expectAudit(before, want...)
		}

		want := b.auditLog()
		for i := range want {
			if i > 0 && (want[i].ID <= want[i-1].ID || want[i].At.Before(want[i-1].At)) || want[i].At.Before(start) {
				t.Errorf("entry %d at %v follows entry %d at %v", want[i].ID, want[i].At, want[max(i, 1)-1].ID, want[max(i, 1)-1].At)
			}
		}
		for _, again := range []func(){b.reopen, b.kill} {
			again()
			if got := b.auditLog(); !slices.EqualFunc(got, want, sameAuditEntry) {
				t.Errorf("after reopening: %+v\nwant %+v", got, want)
			}
		}
	}},
	{"when a domain is released or changes hands, the audit log says which tag has lost it and which has it again", func(t *testing.T, b *bed) {
		actor := store.Actor{Kind: store.ByOperator, Name: "ann"}
		ctx := store.WithActor(t.Context(), actor)
		p, other := b.partner("Acme"), b.partner("Other")
		m, rivals := b.merchant(p, "Shop"), b.merchant(other, "Shop")
		tag := b.tag(m, store.ServerSide, "shop.com")
		hats, hatRivals := b.tag(b.merchant(p, "Hats"), store.ServerSide, "hats.com"), b.merchant(other, "Hats")
		shoes := b.tag(b.merchant(p, "Shoes"), store.ServerSide, "shoes.com")
		var rival store.Tag
		entry := func(action store.AuditAction, tag store.Tag, detail string) store.AuditEntry {
			return store.AuditEntry{Action: action, Partner: tag.Partner, Merchant: tag.Merchant, Tag: tag.ID, Detail: detail}
		}
		verify := func() error {
			found := store.DNSFinding{Verdict: store.DNSCorrect, Code: "ok", CheckedAt: b.clock.Now()}
			_, err := b.UpdateTag(ctx, tag.ID, func(t store.Tag) store.Tag { return t.AfterVerify(found) })
			return err
		}
		for _, c := range []struct {
			change string
			do     func() error
			want   func() []store.AuditEntry // without the actor
		}{
			{"ReleaseDomain", func() error { _, err := b.ReleaseDomain(ctx, "shop.com"); return err },
				func() []store.AuditEntry {
					return []store.AuditEntry{entry("tag.claim_lost", tag, "shop.com")}
				}},
			{"a verify that claims the free domain", verify, func() []store.AuditEntry {
				return []store.AuditEntry{entry("tag.claimed", tag, "shop.com"), entry("tag.verified", tag, tag.Host)}
			}},
			{"ReleaseDomain of a verified tag", func() error { _, err := b.ReleaseDomain(ctx, "shop.com"); return err },
				func() []store.AuditEntry {
					return []store.AuditEntry{entry("tag.claim_lost", tag, "shop.com")}
				}},
			{"GenerateTag for the released domain", func() (err error) {
				rival, _, err = b.GenerateTag(ctx, rivals.ID, store.ServerSide, "shop.com")
				return err
			}, func() []store.AuditEntry {
				return []store.AuditEntry{entry("tag.generated", rival, rival.Host)}
			}},
			{"a verify that takes a lapsed claim over", func() error { b.clock.move(7 * day); return verify() },
				func() []store.AuditEntry {
					return []store.AuditEntry{entry("tag.claim_lost", rival, "shop.com"),
						entry("tag.claimed", tag, "shop.com"), entry("tag.verified", tag, tag.Host)}
				}},
			{"GenerateTag that takes a lapsed claim over", func() (err error) {
				rival, _, err = b.GenerateTag(ctx, hatRivals.ID, store.ServerSide, "hats.com")
				return err
			}, func() []store.AuditEntry {
				return []store.AuditEntry{entry("tag.claim_lost", hats, "hats.com"), entry("tag.generated", rival, rival.Host)}
			}},
			{"a tracking domain that takes a lapsed claim away", func() error {
				_, err := b.EnablePreverified(ctx, p.ID, "track.shoes.com")
				return err
			}, func() []store.AuditEntry {
				return []store.AuditEntry{entry("tag.claim_lost", shoes, "shoes.com"),
					{Action: "partner.preverified", Partner: p.ID, Detail: "track.shoes.com"}}
			}},
		} {
			before := len(b.auditLog())
			if err := c.do(); err != nil {
				t.Fatalf("%s: %v", c.change, err)
			}
			want := c.want()
			for i := range want {
				want[i].Actor = actor
			}
			b.expectAudit(before, want...)
		}
	}},
	{"a change without an actor is the service's; the context may give a reason", func(t *testing.T, b *bed) {
		p, err := b.AddPartner(store.WithReason(t.Context(), "contract 7"), "Acme")
		if err != nil {
			t.Fatal(err)
		}
		b.expectAudit(0, store.AuditEntry{Action: store.PartnerAdded, Partner: p.ID, Actor: store.Actor{Kind: store.ByService}, Reason: "contract 7"})
	}},
	{"a change that is refused, and a call that changes nothing, are not in the audit log", func(t *testing.T, b *bed) {
		p := b.preverified(b.partner("Acme"), "track.acme.com")
		key, _ := b.key(p, 0)
		if _, err := b.RevokeKey(t.Context(), key.ID, true); err != nil {
			t.Fatal(err)
		}
		m, other := b.merchant(p, "Shop"), b.merchant(p, "Other")
		tag := b.tag(m, store.ServerSide, "shop.com")
		finding := store.DNSFinding{Verdict: store.DNSPending, Code: "not_everywhere", CheckedAt: start}
		before := len(b.auditLog())

		for call, refused := range map[string]func() error{
			"AddPartner without a name": func() error { _, err := b.AddPartner(t.Context(), ""); return err },
			"a key of no partner": func() error {
				_, _, err := b.IssueKey(t.Context(), store.NewPartnerID(), store.KeyOptions{})
				return err
			},
			"revoking no key":         func() error { _, err := b.RevokeKey(t.Context(), "aaaaaaaaaaaa", true); return err },
			"a taken tracking domain": func() error { _, err := b.EnablePreverified(t.Context(), p.ID, "a.shop.com"); return err },
			"a merchant of no partner": func() error {
				_, err := b.AddMerchant(t.Context(), store.NewPartnerID(), store.NewMerchant{Name: "S"})
				return err
			},
			"a taken domain": func() error {
				_, _, err := b.GenerateTag(t.Context(), other.ID, store.ServerSide, "shop.com")
				return err
			},
			"a context that has ended": func() error { _, err := b.AddPartner(endedContext(t), "Late"); return err },
			"a tag with another id": func() error {
				_, err := b.UpdateTag(t.Context(), tag.ID, func(t store.Tag) store.Tag { t.ID = "x"; return t })
				return err
			},
			"a partner with another id": func() error {
				_, err := b.UpdatePartner(t.Context(), p.ID, func(p store.Partner) store.Partner { p.ID = "x"; return p })
				return err
			},
			"a merchant with another id": func() error {
				_, err := b.UpdateMerchant(t.Context(), m.ID, func(m store.Merchant) store.Merchant { m.ID = "x"; return m })
				return err
			},
		} {
			if refused() == nil {
				t.Errorf("%s: no error", call)
			}
		}
		for call, nothing := range map[string]func() error{
			"the same tracking domain":    func() error { _, err := b.EnablePreverified(t.Context(), p.ID, "track.acme.com"); return err },
			"a key that is revoked again": func() error { _, err := b.RevokeKey(t.Context(), key.ID, true); return err },
			"a tag that exists":           func() error { _, _, err := b.GenerateTag(t.Context(), m.ID, store.ServerSide, "shop.com"); return err },
			"an update of nothing": func() error {
				_, err := b.UpdateTag(t.Context(), tag.ID, func(t store.Tag) store.Tag { return t })
				return err
			},
			"a finding that changes no state": func() error {
				_, err := b.UpdateTag(t.Context(), tag.ID, func(t store.Tag) store.Tag { return t.AfterVerify(finding) })
				return err
			},
			"a partner as it was": func() error {
				_, err := b.UpdatePartner(t.Context(), p.ID, func(p store.Partner) store.Partner { return p })
				return err
			},
			"a merchant as it was": func() error {
				_, err := b.UpdateMerchant(t.Context(), m.ID, func(m store.Merchant) store.Merchant { return m })
				return err
			},
		} {
			if err := nothing(); err != nil {
				t.Errorf("%s: %v", call, err)
			}
		}
		b.expectAudit(before)
	}},
	{"the audit log is listed newest first, by partner, time, number and limit", func(t *testing.T, b *bed) {
		acme, other := b.partner("Acme"), b.partner("Other")
		b.merchant(other, "Shop")
		b.clock.move(time.Hour)
		later := b.clock.Now()
		b.merchant(acme, "Shop")
		b.merchant(other, "Shop")
		b.clock.move(-2 * time.Hour) // the time of an entry is what the clock says: the filter must not rely on its order
		b.merchant(acme, "Shop")
		all := b.auditLog()
		slices.Reverse(all)
		filter := func(keep func(store.AuditEntry) bool) (kept []store.AuditEntry) {
			for _, e := range all {
				if keep(e) {
					kept = append(kept, e)
				}
			}
			return kept
		}
		for name, c := range map[string]struct {
			q    store.AuditQuery
			want []store.AuditEntry
			n    int
		}{
			"all":                {store.AuditQuery{Limit: 100}, all, 6},
			"limit":              {store.AuditQuery{Limit: 2}, all[:2], 2},
			"no limit given":     {store.AuditQuery{}, nil, 0},
			"partner":            {store.AuditQuery{Partner: acme.ID, Limit: 100}, filter(func(e store.AuditEntry) bool { return e.Partner == acme.ID }), 3},
			"no partner":         {store.AuditQuery{Partner: store.NewPartnerID(), Limit: 100}, nil, 0},
			"a part of an id":    {store.AuditQuery{Partner: acme.ID[:8], Limit: 100}, nil, 0},
			"since":              {store.AuditQuery{Since: later, Limit: 100}, filter(func(e store.AuditEntry) bool { return e.At.After(later) }), 2},
			"since exactly":      {store.AuditQuery{Since: all[2].At, Limit: 100}, all[1:3], 2},
			"before":             {store.AuditQuery{Before: all[2].ID, Limit: 2}, all[3:5], 2},
			"before the end":     {store.AuditQuery{Before: all[0].ID + 5, Limit: 1}, all[:1], 1},
			"before the first":   {store.AuditQuery{Before: all[5].ID, Limit: 10}, nil, 0},
			"partner and before": {store.AuditQuery{Partner: acme.ID, Before: all[0].ID, Limit: 1}, all[2:3], 1},
		} {
			got, err := b.Audit(t.Context(), c.q)
			if err != nil || len(c.want) != c.n || !slices.EqualFunc(got, c.want, sameAuditEntry) {
				t.Errorf("%s: %+v, %v\nwant %d: %+v", name, got, err, c.n, c.want)
			}
		}
	}},
	{"changes at the same time have one entry each", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		const n = 20
		errs := atOnce(n, func(int) error {
			_, err := b.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Shop"})
			return err
		})
		for _, err := range errs {
			if err != nil {
				t.Error(err)
			}
		}
		seen := map[store.MerchantID]bool{}
		for _, e := range b.auditLog()[1:] {
			seen[e.Merchant] = true
		}
		if len(seen) != n {
			t.Errorf("%d merchants are in the log, want %d", len(seen), n)
		}
	}},
	{"a partner that fills the audit log pushes out its own entries, and neither another partner's nor operators'", func(t *testing.T, b *bed) {
		byOperator := store.WithActor(t.Context(), store.Actor{Kind: store.ByOperator, Name: "ann"})
		byKey := store.WithActor(t.Context(), store.Actor{Kind: store.ByKey, Name: "aaaaaaaaaaaa"})
		toggle := func(ctx context.Context, p store.Partner, n int) {
			for range n {
				if _, err := b.UpdatePartner(ctx, p.ID, func(p store.Partner) store.Partner { p.Suspended = !p.Suspended; return p }); err != nil {
					t.Fatal(err)
				}
				b.clock.move(time.Hour)
			}
		}
		counts := func() map[store.PartnerID]int {
			n := map[store.PartnerID]int{}
			for _, e := range b.auditLog() {
				n[e.Holder()]++
			}
			return n
		}
		expect := func(when string, want map[store.PartnerID]int) {
			t.Helper()
			b.reopen() // an engine may drop entries later, but at the latest when it closes
			if got := counts(); !maps.Equal(got, want) {
				t.Errorf("%s: %v, want %v", when, got, want)
			}
		}
		var partners []store.Partner
		for _, name := range []string{"Quiet", "Noisy", "Loud"} {
			p, err := b.AddPartner(byOperator, name)
			if err != nil {
				t.Fatal(err)
			}
			partners = append(partners, p)
		}
		quiet, noisy, loud := partners[0], partners[1], partners[2]
		toggle(byKey, quiet, 10)
		toggle(byOperator, noisy, 10) // of an operator, though about a partner
		first := b.auditLog()[:23]
		toggle(byKey, noisy, AuditLimits.Partners+30)
		expect("one partner has filled the log", map[store.PartnerID]int{"": 13, quiet.ID: 10, noisy.ID: AuditLimits.Partners - 10})
		toggle(byKey, loud, AuditLimits.Partners)
		half := (AuditLimits.Partners - 10) / 2
		expect("two partners have filled it", map[store.PartnerID]int{"": 13, quiet.ID: 10, noisy.ID: half, loud.ID: half})
		log := b.auditLog()
		if !slices.EqualFunc(log[:len(first)], first, sameAuditEntry) {
			t.Errorf("the log begins with\n%+v, want\n%+v", log[:len(first)], first)
		}
		newest := map[store.PartnerID]store.AuditID{}
		for _, e := range log {
			newest[e.Holder()] = e.ID
		}
		if newest[loud.ID] != log[len(log)-1].ID || newest[noisy.ID] >= log[len(log)-half].ID {
			t.Errorf("not the oldest entries were dropped: %v", newest)
		}
		toggle(byOperator, quiet, AuditLimits.Operators)
		expect("operators have more entries than they may, and all are young", map[store.PartnerID]int{"": AuditLimits.Operators + 13, quiet.ID: 10, noisy.ID: half, loud.ID: half})
		b.clock.move(AuditLimits.OperatorAge + time.Hour)
		toggle(byOperator, quiet, AuditLimits.Operators)
		expect("the old ones of them have gone", map[store.PartnerID]int{"": AuditLimits.Operators, quiet.ID: 10, noisy.ID: half, loud.ID: half})
	}}, {"what a partner has just done stays in the audit log, whatever it does after that", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		ctx := store.WithActor(t.Context(), store.Actor{Kind: store.ByKey, Name: "aaaaaaaaaaaa"})
		toggle := func() error {
			_, err := b.UpdatePartner(ctx, p.ID, func(p store.Partner) store.Partner { p.Suspended = !p.Suspended; return p })
			return err
		}
		if err := toggle(); err != nil {
			t.Fatal(err)
		}
		first := b.auditLog()[1]
		for range AuditLimits.Partners + 30 {
			if err := toggle(); err != nil {
				expectKind(t, err, store.KindBusy)
				break
			}
		}
		b.reopen()
		if !slices.ContainsFunc(b.auditLog(), func(e store.AuditEntry) bool { return sameAuditEntry(e, first) }) {
			t.Error("the first entry has gone")
		}
		b.clock.move(AuditLimits.PartnerAge)
		for range 2 {
			if err := toggle(); err != nil {
				t.Errorf("a day later: %v", err)
			}
		}
		b.reopen()
		if log := b.auditLog(); len(log) > AuditLimits.Partners+30 || slices.ContainsFunc(log, func(e store.AuditEntry) bool { return sameAuditEntry(e, first) }) {
			t.Errorf("%d entries, and the first one is there", len(log))
		}
	}},
}
