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

type partnerView struct {
	ID        store.PartnerID `json:"partnerId"`
	Name      string          `json:"name"`
	CreatedAt timestamp       `json:"createdAt"`
	Domain    string          `json:"preverifiedDomain"`
}

func viewPartner(p store.Partner) partnerView {
	return partnerView{p.ID, p.Name, timestamp(p.CreatedAt), p.TrackingDomain}
}
