package operator

import (
	"cmp"
	"context"
	"slices"

	"mtagd/store"
)

// DomainCommands are the subcommands of "mtagd domain".
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
	views := []domainView{}
	for _, claim := range claims {
		views = append(views, viewClaim(claim))
	}
	for _, p := range partners {
		if p.PreverifiedEnabled() {
			views = append(views, domainView{Domain: p.TrackingDomain, State: "tracking", Partner: p.ID, Host: p.TrackingDomain})
		}
	}
	store.Sort(views, func(a, b domainView) int { return cmp.Compare(a.Domain, b.Domain) })
	return views, nil
}

type domainRelease struct {
	Domain string `arg:"" help:"Root domain, as printed by list."`
}

func (c domainRelease) Validate() error {
	_, err := store.CheckRootDomain("<domain>", c.Domain)
	return err
}

func (c domainRelease) apply(ctx context.Context, control store.Control) (any, error) {
	domain, err := store.CheckRootDomain("domain", c.Domain)
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
	ClaimedAt      *timestamp       `json:"claimedAt"`
	ElsewhereSince *timestamp       `json:"elsewhereSince"`
	FreeFrom       *timestamp       `json:"freeFrom"`
}

func viewClaim(c store.Claim) domainView {
	return domainView{
		Domain: c.Domain, State: c.State, Partner: c.Partner, Merchant: c.Merchant, Tag: c.Tag, Host: c.Host,
		ClaimedAt: unlessZero(c.ClaimedAt), ElsewhereSince: unlessZero(c.ElsewhereSince), FreeFrom: unlessZero(c.FreeFrom),
	}
}
