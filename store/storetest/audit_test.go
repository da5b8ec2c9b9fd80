package storetest

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/testenv"
)

// auditLimits are what engines must be opened with: with the usual ones, the log would be full after a million changes.
var auditLimits = store.AuditLimits{Partners: 80, PartnerAge: day, Operators: 30, OperatorAge: 30 * day}

// auditLog returns the whole audit log, oldest entry first.
func (b *bed) auditLog() []store.AuditEntry {
	b.t.Helper()
	entries, err := b.Audit(b.t.Context(), store.AuditQuery{Limit: 10_000})
	testenv.Check(b.t, err)
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

type entry = store.AuditEntry

// follow returns a context for changes of an actor, and a function that expects the entries of the change just made, but
// for the actor.
func (b *bed) follow(actor store.Actor) (context.Context, func(change string, err error, want ...entry)) {
	n := len(b.auditLog())
	return store.WithActor(b.t.Context(), actor), func(change string, err error, want ...entry) {
		b.t.Helper()
		testenv.Check(b.t, err)
		for i := range want {
			want[i].Actor = actor
		}
		b.expectAudit(n, want...)
		n += len(want)
	}
}

var auditTests = []test{
	{"each change of control data is in the audit log with its actor, and after reopening", func(t *testing.T, b *bed) {
		ctx, expect := b.follow(store.Actor{Kind: store.ByKey, Name: "aaaaaaaaaaaa", Request: "request-1"})
		p, err := b.AddPartner(ctx, "Acme")
		expect("AddPartner", err, entry{Action: "partner.added", Partner: p.ID})
		key, _, err := b.IssueKey(ctx, p.ID, store.KeyOptions{})
		expect("IssueKey", err, entry{Action: "key.issued", Partner: p.ID, Key: key.ID})
		key, _, err = b.IssueKey(ctx, p.ID, store.KeyOptions{Scope: store.ReadOnly, Personal: true})
		expect("IssueKey for personal data", err, entry{Action: "key.issued", Partner: p.ID, Key: key.ID, Detail: "read, personal data"})
		_, err = b.RevokeKey(ctx, key.ID, true)
		expect("RevokeKey", err, entry{Action: "key.revoked", Partner: p.ID, Key: key.ID})
		_, err = b.EnablePreverified(ctx, p.ID, "track.acme.com")
		expect("EnablePreverified", err, entry{Action: "partner.preverified", Partner: p.ID, Detail: "track.acme.com"})
		_, err = b.EnablePreverified(ctx, p.ID, "track.acme.net")
		expect("a move of the tracking domain", err, entry{Action: "partner.preverified", Partner: p.ID, Detail: "track.acme.net"})

		_, err = b.UpdatePartner(ctx, p.ID, func(p store.Partner) store.Partner { p.Suspended = true; return p })
		expect("suspension of a partner", err, entry{Action: "partner.suspended", Partner: p.ID})
		_, err = b.UpdatePartner(ctx, p.ID, func(p store.Partner) store.Partner {
			p.Suspended, p.Name = false, "Acme Limited"
			p.Limits = store.PartnerLimits{RequestsPerSecond: 7, Labels: store.NoLimit}
			return p
		})
		expect("several changes of a partner", err,
			entry{Action: "partner.limited", Partner: p.ID, Detail: `{"requestsPerSecond":7,"labels":"off"}`},
			entry{Action: "partner.resumed", Partner: p.ID},
			entry{Action: "partner.changed", Partner: p.ID, Detail: "name"})

		m, err := b.AddMerchant(ctx, p.ID, store.NewMerchant{Name: "Shop", Domain: "shop.com", IdentityRequiresSecret: true})
		expect("AddMerchant", err, entry{Action: "merchant.created", Partner: p.ID, Merchant: m.ID, Detail: "shop.com, requires a secret"})
		_, err = b.UpdateMerchant(ctx, m.ID, func(m store.Merchant) store.Merchant {
			m.Suspended, m.Name, m.Domain = true, "Other", "other.com"
			m.Limits.EventsPerSecond = 5
			return m
		})
		expect("several changes of a merchant", err,
			entry{Action: "merchant.limited", Partner: p.ID, Merchant: m.ID, Detail: `{"eventsPerSecond":5}`},
			entry{Action: "merchant.suspended", Partner: p.ID, Merchant: m.ID},
			entry{Action: "merchant.changed", Partner: p.ID, Merchant: m.ID, Detail: "domain, name"})
		secret, _ := store.NewSecret(start)
		_, err = b.UpdateMerchant(ctx, m.ID, func(m store.Merchant) store.Merchant { return m.WithSecret(secret) })
		expect("a merchant's secrets", err, entry{Action: "merchant.secrets", Partner: p.ID, Merchant: m.ID, Detail: string(secret.ID)})
		_, err = b.UpdateMerchant(ctx, m.ID, func(m store.Merchant) store.Merchant {
			m.IdentityRequiresSecret, m.Secrets = false, nil
			return m
		})
		expect("without the option and its secrets", err,
			entry{Action: "merchant.identity", Partner: p.ID, Merchant: m.ID, Detail: "requires no secret"},
			entry{Action: "merchant.secrets", Partner: p.ID, Merchant: m.ID})
		_, err = b.UpdateMerchant(ctx, m.ID, func(m store.Merchant) store.Merchant {
			m.Suspended, m.Limits = false, store.MerchantLimits{}
			return m
		})
		expect("lifting what was set", err,
			entry{Action: "merchant.limited", Partner: p.ID, Merchant: m.ID},
			entry{Action: "merchant.resumed", Partner: p.ID, Merchant: m.ID})

		tag, _, err := b.GenerateTag(ctx, m.ID, store.ServerSide, "shop.com")
		expect("GenerateTag", err, entry{Action: "tag.generated", Partner: p.ID, Merchant: m.ID, Tag: tag.ID, Detail: tag.Label + ".shop.com"})
		pv, _, err := b.GenerateTag(ctx, m.ID, store.Preverified, "")
		expect("a preverified tag", err, entry{Action: "tag.generated", Partner: p.ID, Merchant: m.ID, Tag: pv.ID, Detail: "track.acme.net"})
		wrong := store.DNSFinding{Verdict: store.DNSWrong, Code: "no_record", Detail: "There is no record."}
		correct := store.DNSFinding{Verdict: store.DNSCorrect, Code: "ok", Detail: "It is right."}
		for _, c := range []struct {
			what   string
			change func(store.Tag) store.Tag
			action store.AuditAction
			detail string
		}{
			{"the first correct verify", func(t store.Tag) store.Tag { return t.AfterVerify(correct) }, "tag.verified", tag.Host},
			{"DNS that leads elsewhere", func(t store.Tag) store.Tag { return t.AfterRecheck(wrong) }, "tag.disconnected", "no_record"},
			{"DNS that is right again", func(t store.Tag) store.Tag { return t.AfterRecheck(correct) }, "tag.connected", ""},
			{"suspension of a tag", func(t store.Tag) store.Tag { t.Suspended = true; return t }, "tag.suspended", ""},
			{"lifting it", func(t store.Tag) store.Tag { t.Suspended = false; return t }, "tag.resumed", ""},
		} {
			_, err = b.UpdateTag(ctx, tag.ID, c.change)
			expect(c.what, err, entry{Action: c.action, Partner: p.ID, Merchant: m.ID, Tag: tag.ID, Detail: c.detail})
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
		p, other := b.partner("Acme"), b.partner("Other")
		m, rivals := b.merchant(p, "Shop"), b.merchant(other, "Shop")
		tag := b.tag(m, store.ServerSide, "shop.com")
		hats, hatRivals := b.tag(b.merchant(p, "Hats"), store.ServerSide, "hats.com"), b.merchant(other, "Hats")
		shoes := b.tag(b.merchant(p, "Shoes"), store.ServerSide, "shoes.com")
		ctx, expect := b.follow(store.Actor{Kind: store.ByOperator, Name: "ann"})
		about := func(action store.AuditAction, tag store.Tag, detail string) entry {
			return entry{Action: action, Partner: tag.Partner, Merchant: tag.Merchant, Tag: tag.ID, Detail: detail}
		}
		verify := func() error {
			found := store.DNSFinding{Verdict: store.DNSCorrect, Code: "ok", CheckedAt: b.clock.Now()}
			_, err := b.UpdateTag(ctx, tag.ID, func(t store.Tag) store.Tag { return t.AfterVerify(found) })
			return err
		}
		_, err := b.ReleaseDomain(ctx, "shop.com")
		expect("ReleaseDomain", err, about("tag.claim_lost", tag, "shop.com"))
		expect("a verify that claims the free domain", verify(), about("tag.claimed", tag, "shop.com"), about("tag.verified", tag, tag.Host))
		_, err = b.ReleaseDomain(ctx, "shop.com")
		expect("ReleaseDomain of a verified tag", err, about("tag.claim_lost", tag, "shop.com"))
		rival, _, err := b.GenerateTag(ctx, rivals.ID, store.ServerSide, "shop.com")
		expect("GenerateTag for the released domain", err, about("tag.generated", rival, rival.Host))
		b.clock.move(7 * day)
		expect("a verify that takes a lapsed claim over", verify(), about("tag.claim_lost", rival, "shop.com"),
			about("tag.claimed", tag, "shop.com"), about("tag.verified", tag, tag.Host))
		rival, _, err = b.GenerateTag(ctx, hatRivals.ID, store.ServerSide, "hats.com")
		expect("GenerateTag that takes a lapsed claim over", err, about("tag.claim_lost", hats, "hats.com"), about("tag.generated", rival, rival.Host))
		_, err = b.EnablePreverified(ctx, p.ID, "track.shoes.com")
		expect("a tracking domain that takes a lapsed claim away", err, about("tag.claim_lost", shoes, "shoes.com"),
			entry{Action: "partner.preverified", Partner: p.ID, Detail: "track.shoes.com"})
	}},
	{"a change without an actor is the service's; the context may give a reason", func(t *testing.T, b *bed) {
		p, err := b.AddPartner(store.WithReason(t.Context(), "contract 7"), "Acme")
		testenv.Check(t, err)
		b.expectAudit(0, entry{Action: store.PartnerAdded, Partner: p.ID, Actor: store.Actor{Kind: store.ByService}, Reason: "contract 7"})
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
		filter := func(keep func(entry) bool) (kept []entry) {
			for _, e := range all {
				if keep(e) {
					kept = append(kept, e)
				}
			}
			return kept
		}
		for name, c := range map[string]struct {
			q    store.AuditQuery
			want []entry
			n    int
		}{
			"all":                {store.AuditQuery{Limit: 100}, all, 6},
			"limit":              {store.AuditQuery{Limit: 2}, all[:2], 2},
			"no limit given":     {store.AuditQuery{}, nil, 0},
			"partner":            {store.AuditQuery{Partner: acme.ID, Limit: 100}, filter(func(e entry) bool { return e.Partner == acme.ID }), 3},
			"no partner":         {store.AuditQuery{Partner: store.NewPartnerID(), Limit: 100}, nil, 0},
			"a part of an id":    {store.AuditQuery{Partner: acme.ID[:8], Limit: 100}, nil, 0},
			"since":              {store.AuditQuery{Since: later, Limit: 100}, filter(func(e entry) bool { return e.At.After(later) }), 2},
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
			testenv.Check(t, err)
			partners = append(partners, p)
		}
		quiet, noisy, loud := partners[0], partners[1], partners[2]
		toggle(byKey, quiet, 10)
		toggle(byOperator, noisy, 10) // of an operator, though about a partner
		first := b.auditLog()[:23]
		toggle(byKey, noisy, auditLimits.Partners+30)
		expect("one partner has filled the log", map[store.PartnerID]int{"": 13, quiet.ID: 10, noisy.ID: auditLimits.Partners - 10})
		toggle(byKey, loud, auditLimits.Partners)
		half := (auditLimits.Partners - 10) / 2
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
		toggle(byOperator, quiet, auditLimits.Operators)
		expect("operators have more entries than they may, and all are young", map[store.PartnerID]int{"": auditLimits.Operators + 13, quiet.ID: 10, noisy.ID: half, loud.ID: half})
		b.clock.move(auditLimits.OperatorAge + time.Hour)
		toggle(byOperator, quiet, auditLimits.Operators)
		expect("the old ones of them have gone", map[store.PartnerID]int{"": auditLimits.Operators, quiet.ID: 10, noisy.ID: half, loud.ID: half})
	}}, {"what a partner has just done stays in the audit log, whatever it does after that", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		ctx := store.WithActor(t.Context(), store.Actor{Kind: store.ByKey, Name: "aaaaaaaaaaaa"})
		toggle := func() error {
			_, err := b.UpdatePartner(ctx, p.ID, func(p store.Partner) store.Partner { p.Suspended = !p.Suspended; return p })
			return err
		}
		testenv.Check(t, toggle())
		first := b.auditLog()[1]
		for range auditLimits.Partners + 30 {
			if err := toggle(); err != nil {
				expectKind(t, err, store.KindBusy)
				break
			}
		}
		b.reopen()
		if !slices.ContainsFunc(b.auditLog(), func(e entry) bool { return sameAuditEntry(e, first) }) {
			t.Error("the first entry has gone")
		}
		b.clock.move(auditLimits.PartnerAge)
		for range 2 {
			if err := toggle(); err != nil {
				t.Errorf("a day later: %v", err)
			}
		}
		b.reopen()
		if log := b.auditLog(); len(log) > auditLimits.Partners+30 || slices.ContainsFunc(log, func(e entry) bool { return sameAuditEntry(e, first) }) {
			t.Errorf("%d entries, and the first one is there", len(log))
		}
	}},
}
