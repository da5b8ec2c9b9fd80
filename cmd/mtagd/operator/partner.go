package operator

import (
	"context"
	"errors"
	"log/slog"

	"mtagd/store"
)

// PartnerCommands are the subcommands of "mtagd partner".
type PartnerCommands struct {
	Add       partnerAdd       `cmd:"" help:"Create a partner."`
	List      partnerList      `cmd:"" help:"List all partners."`
	Preverify partnerPreverify `cmd:"" help:"Enable preverified tags for a partner on its tracking domain, or change that domain."`
	Suspend   partnerSuspend   `cmd:"" help:"Suspend a partner: its tags accept no events, and it can change nothing, from the next request on."`
	Resume    partnerResume    `cmd:"" help:"End the suspension of a partner."`
	Limit     partnerLimit     `cmd:"" help:"Set limits of a partner; without a flag, show them."`
}

type partnerAdd struct {
	Name string `required:"" placeholder:"NAME" help:"Name of the partner, 1 to 256 characters."`
}

func (partnerAdd) path() string { return "/partner/add" }

func (c partnerAdd) Validate() error {
	_, err := store.CheckName("--name", c.Name)
	return err
}

func (c partnerAdd) apply(ctx context.Context, control store.Control, log *slog.Logger) (any, error) {
	p, err := control.AddPartner(ctx, c.Name)
	if err == nil {
		log.Info("partner added", "partner", p.ID)
	}
	return viewPartner(p), err
}

type partnerList struct{}

func (partnerList) path() string { return "/partner/list" }

func (partnerList) apply(ctx context.Context, control store.Control, _ *slog.Logger) (any, error) {
	partners, err := control.Partners(ctx)
	views := make([]partnerView, len(partners))
	for i, p := range partners {
		views[i] = viewPartner(p)
	}
	return views, err
}

type partnerPreverify struct {
	Partner store.PartnerID `arg:"" name:"partner-id" help:"Id of the partner."`
	Domain  string          `required:"" placeholder:"HOST" help:"Tracking domain of the partner: a full host name with a CNAME record to the CNAME target."`
}

func (partnerPreverify) path() string { return "/partner/preverify" }

func (c partnerPreverify) Validate() error {
	_, err := store.CheckHostName("--domain", c.Domain)
	if c.Partner == "" {
		err = errors.Join(store.Invalid("<partner-id>", "is required"), err)
	}
	return err
}

func (c partnerPreverify) apply(ctx context.Context, control store.Control, log *slog.Logger) (any, error) {
	p, err := control.EnablePreverified(ctx, c.Partner, c.Domain)
	if err == nil {
		log.Info("preverified tags enabled", "partner", p.ID, "domain", p.TrackingDomain)
	}
	return viewPartner(p), err
}

// findPartner returns a partner. KindNotFound: partner.
func findPartner(ctx context.Context, control store.Control, id store.PartnerID) (store.Partner, error) {
	partners, err := control.Partners(ctx)
	if err != nil {
		return store.Partner{}, err
	}
	for _, p := range partners {
		if p.ID == id {
			return p, nil
		}
	}
	return store.Partner{}, store.NotFound("partner")
}

type partnerView struct {
	ID        store.PartnerID     `json:"partnerId"`
	Name      string              `json:"name"`
	CreatedAt timestamp           `json:"createdAt"`
	Domain    string              `json:"preverifiedDomain"`
	Suspended bool                `json:"suspended"`
	Limits    store.PartnerLimits `json:"limits"` // those that are set
}

func viewPartner(p store.Partner) partnerView {
	return partnerView{p.ID, p.Name, timestamp(p.CreatedAt), p.TrackingDomain, p.Suspended, p.Limits}
}

// partnerRef is what is shown of a partner beside what belongs to it.
type partnerRef struct {
	ID        store.PartnerID `json:"partnerId"`
	Name      string          `json:"name"`
	Suspended bool            `json:"suspended"`
}

func refPartner(p store.Partner) partnerRef { return partnerRef{p.ID, p.Name, p.Suspended} }
