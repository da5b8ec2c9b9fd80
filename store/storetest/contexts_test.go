package storetest

import (
	"context"
	"errors"
	"testing"

	"mtagd/store"
)

func endedContext(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func expectCanceled(t *testing.T, method string, err error) {
	t.Helper()
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%s gives %v, want the context's error", method, err)
	}
}

var contextTests = []test{
	{"Record with a context that has ended gives its error and records nothing", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		e := withEventID(mark(m, tag, "user-1"), "order-1")
		e.Identity = who("user-1", email("a@example.com"))
		expectCanceled(t, "Record", b.Record(endedContext(t), []store.Mark{e}))
		b.expectEvents(m, 0)
		b.expectResolved(m, who("", email("a@example.com")), "")
		b.record([]store.Mark{e}, store.Recorded) // the event_id was not remembered either
	}},
	{"Resolve with a context that has ended gives its error and links nothing", func(t *testing.T, b *bed) {
		m, _ := b.shop()
		b.resolve(m, who("user-1", phone("1234")))
		for _, id := range []store.Identity{who("user-2", email("a@example.com")), who("user-2"), who("", phone("1234"))} {
			_, err := b.Resolve(endedContext(t), m, id)
			expectCanceled(t, "Resolve", err)
		}
		b.expectResolved(m, who("", email("a@example.com")), "")
	}},
	{"Events with a context that has ended gives its error", func(t *testing.T, b *bed) {
		m, tag := b.shop()
		b.record([]store.Mark{mark(m, tag, "user-1")}, store.Recorded)
		for range b.reopened {
			for _, way := range everyOrder {
				_, err := b.Events(endedContext(t), store.Query{Merchant: m, SortBy: way.by, Asc: way.asc, Limit: 10})
				expectCanceled(t, "Events", err)
			}
		}
	}},
	{"Feed with a context that has ended gives its error", func(t *testing.T, b *bed) {
		_, err := b.Feed(endedContext(t), store.FeedQuery{}, func(*store.Received) bool { return true })
		expectCanceled(t, "Feed", err)
	}},
	{"control methods with a context that has ended give its error and change nothing", func(t *testing.T, b *bed) {
		p := b.partner("Acme")
		key, _ := b.key(p, 0)
		m := b.merchant(p, "Shop")
		tag := b.tag(m, store.ServerSide, "shop.com")
		session, text := b.begin(key)
		_, link := b.link(p.ID)
		for method, call := range map[string]func(ctx context.Context) error{
			"AddPartner": func(ctx context.Context) error {
				p, err := b.AddPartner(ctx, "Other")
				if p != (store.Partner{}) {
					t.Errorf("AddPartner returns %+v beside an error", p)
				}
				return err
			},
			"Partners": func(ctx context.Context) error { _, err := b.Partners(ctx); return err },
			"EnablePreverified": func(ctx context.Context) error {
				_, err := b.EnablePreverified(ctx, p.ID, "track.acme.com")
				return err
			},
			"IssueKey":     func(ctx context.Context) error { _, _, err := b.IssueKey(ctx, p.ID, store.KeyOptions{}); return err },
			"Keys":         func(ctx context.Context) error { _, err := b.Keys(ctx, p.ID); return err },
			"RevokeKey":    func(ctx context.Context) error { _, err := b.RevokeKey(ctx, key.ID, true); return err },
			"AddLink":      func(ctx context.Context) error { _, _, err := b.AddLink(ctx, p.ID); return err },
			"BeginSession": func(ctx context.Context) error { _, _, err := b.BeginSession(ctx, key.ID); return err },
			"Link":         func(ctx context.Context) error { _, err := b.Link(ctx, link); return err },
			"UseLink":      func(ctx context.Context) error { _, _, err := b.UseLink(ctx, link); return err },
			"EndSession":   func(ctx context.Context) error { return b.EndSession(ctx, session.ID) },
			"EndSessions":  func(ctx context.Context) error { _, err := b.EndSessions(ctx, p.ID); return err },
			"AddMerchant": func(ctx context.Context) error {
				_, err := b.AddMerchant(ctx, p.ID, store.NewMerchant{Name: "Other"})
				return err
			},
			"Merchant": func(ctx context.Context) error { _, err := b.Merchant(ctx, m.ID); return err },
			"Merchants": func(ctx context.Context) error {
				_, _, err := b.Merchants(ctx, store.MerchantQuery{Partner: p.ID, Limit: 10})
				return err
			},
			"GenerateTag": func(ctx context.Context) error {
				_, _, err := b.GenerateTag(ctx, m.ID, store.ClientSide, "")
				return err
			},
			"UpdatePartner": func(ctx context.Context) error {
				_, err := b.UpdatePartner(ctx, p.ID, func(p store.Partner) store.Partner { p.Suspended = true; return p })
				return err
			},
			"UpdateMerchant": func(ctx context.Context) error {
				_, err := b.UpdateMerchant(ctx, m.ID, func(m store.Merchant) store.Merchant { m.Suspended = true; return m })
				return err
			},
			"Claim":         func(ctx context.Context) error { _, err := b.Claim(ctx, "shop.com"); return err },
			"Claims":        func(ctx context.Context) error { _, err := b.Claims(ctx, p.ID); return err },
			"ReleaseDomain": func(ctx context.Context) error { _, err := b.ReleaseDomain(ctx, "shop.com"); return err },
			"Tag":           func(ctx context.Context) error { _, err := b.Tag(ctx, tag.ID); return err },
			"Audit":         func(ctx context.Context) error { _, err := b.Audit(ctx, store.AuditQuery{Limit: 1}); return err },
			"UpdateTag": func(ctx context.Context) error {
				_, err := b.UpdateTag(ctx, tag.ID, func(tag store.Tag) store.Tag {
					return tag.AfterVerify(store.DNSFinding{Verdict: store.DNSCorrect})
				})
				return err
			},
		} {
			expectCanceled(t, method, call(endedContext(t)))
		}
		if got, err := b.Partners(t.Context()); err != nil || len(got) != 1 || !samePartner(got[0], p) {
			t.Errorf("partners %+v, %v", got, err)
		}
		if got, err := b.Keys(t.Context(), p.ID); err != nil || len(got) != 1 || !sameKey(got[0], key) {
			t.Errorf("keys %+v, %v", got, err)
		}
		m.Tags = []store.Tag{tag}
		if got, n, err := b.Merchants(t.Context(), store.MerchantQuery{Partner: p.ID, Limit: 10}); err != nil || n != 1 || !sameMerchant(got[0], m) {
			t.Errorf("%d merchants: %+v, %v", n, got, err)
		}
		b.expectSession(text, true)
		if _, _, err := b.UseLink(t.Context(), link); err != nil {
			t.Errorf("the link: %v", err)
		}
	}},
}
