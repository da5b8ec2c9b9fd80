package operator

import (
	"cmp"
	"context"
	"slices"

	"mtagd/store"
)

type TagCommands struct {
	Show    tagShow    `cmd:"" help:"Show a tag, its merchant and its partner."`
	Suspend tagSuspend `cmd:"" help:"Suspend a tag: it accepts no events from the next request on."`
	Resume  tagResume  `cmd:"" help:"End the suspension of a tag."`
}

type tagShow struct {
	Tag store.TagID `arg:"" name:"tag-id" help:"Id of the tag, as in a snippet or a log."`
}

func (c tagShow) apply(ctx context.Context, control store.Control) (any, error) {
	t, err := control.Tag(ctx, c.Tag)
	if err != nil {
		return nil, err
	}
	return showTag(ctx, control, t)
}

type tagSuspend struct {
	Tag    store.TagID `arg:"" name:"tag-id" help:"Id of the tag."`
	Reason reason      `placeholder:"TEXT" help:"Why, for the audit log."`
}

func (c tagSuspend) apply(ctx context.Context, control store.Control) (any, error) {
	return suspendTag(c.Reason.in(ctx), control, c.Tag, true)
}

type tagResume struct {
	Tag store.TagID `arg:"" name:"tag-id" help:"Id of the tag."`
}

func (c tagResume) apply(ctx context.Context, control store.Control) (any, error) {
	return suspendTag(ctx, control, c.Tag, false)
}

func suspendTag(ctx context.Context, control store.Control, id store.TagID, suspended bool) (any, error) {
	t, err := control.UpdateTag(ctx, id, func(t store.Tag) store.Tag {
		t.Suspended = suspended
		return t
	})
	if err != nil {
		return nil, err
	}
	return showTag(ctx, control, t)
}

func showTag(ctx context.Context, control store.Control, t store.Tag) (any, error) {
	m, err := control.Merchant(ctx, t.Merchant)
	if err != nil {
		return nil, err
	}
	p, err := findPartner(ctx, control, t.Partner)
	return struct {
		tagView
		Merchant merchantRef `json:"merchant"`
		Partner  partnerRef  `json:"partner"`
	}{viewTag(t), merchantRef{m.ID, m.Name, m.Suspended}, refPartner(p)}, err
}

type tagView struct {
	ID        store.TagID     `json:"tagId"`
	Type      store.TagType   `json:"type"`
	Host      string          `json:"host"` // empty for a client-side tag: its host is configuration
	Status    store.TagStatus `json:"status"`
	Connected bool            `json:"isConnected"`
	Suspended bool            `json:"suspended"`
	CreatedAt timestamp       `json:"createdAt"`
}

func viewTag(t store.Tag) tagView {
	return tagView{t.ID, t.Type, t.Host, t.Status(), t.Connected, t.Suspended, timestamp(t.CreatedAt)}
}

// merchantRef is what is shown of a merchant beside what belongs to it.
type merchantRef struct {
	ID        store.MerchantID `json:"merchantId"`
	Name      string           `json:"name"`
	Suspended bool             `json:"suspended"`
}

type DomainCommands struct {
	List    domainList    `cmd:"" help:"List the domains that are taken: root domains of server-side tags, and tracking domains."`
	Release domainRelease `cmd:"" help:"Take a root domain away from its tag, so that another merchant can register it."`
}

type domainList struct {
	Partner store.PartnerID `placeholder:"PARTNER_ID" help:"Only the domains of this partner (default: of all partners)."`
}

func (c domainList) apply(ctx context.Context, control store.Control) (any, error) {
	partners, err := control.Partners(ctx)
	if err != nil {
		return nil, err
	}
	if c.Partner != "" {
		partners = slices.DeleteFunc(partners, func(p store.Partner) bool { return p.ID != c.Partner })
		if len(partners) == 0 {
			return nil, store.NotFound("partner")
		}
	}
	claims, err := control.Claims(ctx, c.Partner)
	if err != nil {
		return nil, err
	}
	all := views(claims, viewClaim)
	for _, p := range partners {
		if p.PreverifiedEnabled() {
			all = append(all, domainView{Domain: p.TrackingDomain, State: "tracking", Partner: p.ID, Host: p.TrackingDomain})
		}
	}
	store.Sort(all, func(a, b domainView) int { return cmp.Compare(a.Domain, b.Domain) })
	return all, nil
}

type domainRelease struct {
	Domain string `arg:"" help:"Root domain, as printed by list."`
}

func (c domainRelease) apply(ctx context.Context, control store.Control) (any, error) {
	domain, err := store.CheckRootDomain("<domain>", c.Domain)
	if err != nil {
		return nil, err
	}
	claim, err := control.ReleaseDomain(ctx, domain)
	return viewClaim(claim), err
}

// domainView shows a claim. A tracking domain has the state "tracking", and neither merchant nor tag.
type domainView struct {
	Domain         string           `json:"domain"`
	State          store.ClaimState `json:"state"`
	Partner        store.PartnerID  `json:"partnerId"`
	Merchant       store.MerchantID `json:"merchantId,omitempty"`
	Tag            store.TagID      `json:"tagId,omitempty"`
	Host           string           `json:"host"`
	ClaimedAt      timestamp        `json:"claimedAt"`
	ElsewhereSince timestamp        `json:"elsewhereSince"`
	FreeFrom       timestamp        `json:"freeFrom"`
}

func viewClaim(c store.Claim) domainView {
	return domainView{
		Domain: c.Domain, State: c.State, Partner: c.Partner, Merchant: c.Merchant, Tag: c.Tag, Host: c.Host,
		ClaimedAt: timestamp(c.ClaimedAt), ElsewhereSince: timestamp(c.ElsewhereSince), FreeFrom: timestamp(c.FreeFrom),
	}
}
