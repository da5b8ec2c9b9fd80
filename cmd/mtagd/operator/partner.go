package operator

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"mtagd/store"
)

type PartnerCommands struct {
	Add       partnerAdd       `cmd:"" help:"Create a partner."`
	List      partnerList      `cmd:"" help:"List all partners."`
	Preverify partnerPreverify `cmd:"" help:"Enable preverified tags for a partner on its tracking domain, or change that domain."`
	Suspend   partnerSuspend   `cmd:"" help:"Suspend a partner: its tags accept no events, and it can change nothing, from the next request on."`
	Resume    partnerResume    `cmd:"" help:"End the suspension of a partner."`
	Rename    partnerRename    `cmd:"" help:"Change the name of a partner."`
	Delete    partnerDelete    `cmd:"" help:"Delete a partner with its API keys. This cannot be undone."`
	Limit     partnerLimit     `cmd:"" help:"Set limits of a partner; without a flag, show them."`
}

type partnerAdd struct {
	Name string `required:"" placeholder:"NAME" help:"Name of the partner, 1 to 256 characters."`
}

func (c partnerAdd) Validate() error {
	_, err := store.CheckName("--name", c.Name)
	return err
}

func (c partnerAdd) apply(ctx context.Context, control store.Control) (any, error) {
	p, err := control.AddPartner(ctx, c.Name)
	return viewPartner(p), err
}

type partnerList struct{}

func (partnerList) apply(ctx context.Context, control store.Control) (any, error) {
	partners, err := control.Partners(ctx)
	return views(partners, viewPartner), err
}

type partnerPreverify struct {
	Partner store.PartnerID `arg:"" name:"partner-id" help:"Id of the partner."`
	Domain  string          `required:"" placeholder:"HOST" help:"Tracking domain of the partner: a full host name with a CNAME record to the CNAME target."`
}

func (c partnerPreverify) Validate() error {
	_, err := store.CheckHostName("--domain", c.Domain)
	if c.Partner == "" {
		err = errors.Join(store.Invalid("<partner-id>", "is required"), err)
	}
	return err
}

func (c partnerPreverify) apply(ctx context.Context, control store.Control) (any, error) {
	p, err := control.EnablePreverified(ctx, c.Partner, c.Domain)
	return viewPartner(p), err
}

type partnerSuspend struct {
	Partner store.PartnerID `arg:"" name:"partner-id" help:"Id of the partner."`
	Reason  reason          `placeholder:"TEXT" help:"Why, for the audit log."`
}

func (c partnerSuspend) apply(ctx context.Context, control store.Control) (any, error) {
	return updatePartner(c.Reason.in(ctx), control, c.Partner, func(p *store.Partner) { p.Suspended = true })
}

type partnerResume struct {
	Partner store.PartnerID `arg:"" name:"partner-id" help:"Id of the partner."`
}

func (c partnerResume) apply(ctx context.Context, control store.Control) (any, error) {
	return updatePartner(ctx, control, c.Partner, func(p *store.Partner) { p.Suspended = false })
}

func updatePartner(ctx context.Context, control store.Control, id store.PartnerID, change func(*store.Partner)) (any, error) {
	p, err := control.UpdatePartner(ctx, id, func(p store.Partner) store.Partner {
		change(&p)
		return p
	})
	return viewPartner(p), err
}

type partnerRename struct {
	Partner store.PartnerID `arg:"" name:"partner-id" help:"Id of the partner."`
	Name    string          `required:"" placeholder:"NAME" help:"The new name, 1 to 256 characters."`
}

func (c partnerRename) apply(ctx context.Context, control store.Control) (any, error) {
	name, err := store.CheckName("--name", c.Name)
	if err != nil {
		return nil, err
	}
	return updatePartner(ctx, control, c.Partner, func(p *store.Partner) { p.Name = name })
}

type partnerDelete struct {
	Partner       store.PartnerID `arg:"" name:"partner-id" help:"Id of the partner."`
	WithMerchants bool            `help:"Delete its merchants too, with their tags and their events. Without this flag, a partner that has merchants is kept."`
	Reason        reason          `placeholder:"TEXT" help:"Why, for the audit log."`
}

func (c partnerDelete) apply(ctx context.Context, control store.Control) (any, error) {
	p, err := control.DeletePartner(c.Reason.in(ctx), c.Partner, c.WithMerchants)
	if store.KindOf(err) == store.KindConflict {
		return nil, store.Conflict("", "the partner has merchants: add --with-merchants to delete them too, with their events")
	}
	return viewPartner(p), err
}

type partnerLimit struct {
	Partner           store.PartnerID `arg:"" name:"partner-id" help:"Id of the partner."`
	RequestsPerSecond count           `placeholder:"N" help:"Requests to the partner API; thirty seconds' worth may come at once."`
	WritesPerMinute   count           `placeholder:"N" help:"Requests that change something, each of which costs two synced writes; three minutes' worth may come at once."`
	BytesPerDay       size            `placeholder:"SIZE" help:"Bytes stored in a day by all its merchants, such as 100GiB. It stays when the limit of a merchant is lifted."`
	AnswerBytes       size            `placeholder:"SIZE" help:"Memory of answers that are being sent at the same time, such as 64MiB."`
	FeedReaders       count           `placeholder:"N" help:"Streams of the feed, and requests for it that wait, at the same time; each is a connection of about 20 KiB."`
	Merchants         count           `placeholder:"N" help:"Merchants of the partner."`
	Labels            count           `placeholder:"N" help:"Labels (mtag-xxxx) of the partner's tags. There are 1,679,616 for all partners."`
	UnverifiedClaims  count           `placeholder:"N" help:"Domains of tags that are not verified yet, so that nobody can block many domains of others."`
}

func (partnerLimit) Help() string { return limitHelp }

func (c partnerLimit) limits(l *store.PartnerLimits) []limit {
	return []limit{
		{"requestsPerSecond", c.RequestsPerSecond.setting, &l.RequestsPerSecond, store.DefaultRequestsPerSecond},
		{"writesPerMinute", c.WritesPerMinute.setting, &l.WritesPerMinute, store.DefaultWritesPerMinute},
		{"bytesPerDay", c.BytesPerDay.setting, &l.BytesPerDay, "a share of the free space"},
		{"answerBytes", c.AnswerBytes.setting, &l.AnswerBytes, store.DefaultAnswerBytes},
		{"feedReaders", c.FeedReaders.setting, &l.FeedReaders, store.DefaultFeedReaders},
		{"merchants", c.Merchants.setting, &l.Merchants, store.DefaultMerchants},
		{"labels", c.Labels.setting, &l.Labels, store.DefaultLabels},
		{"unverifiedClaims", c.UnverifiedClaims.setting, &l.UnverifiedClaims, store.DefaultUnverifiedClaims},
	}
}

func (c partnerLimit) apply(ctx context.Context, control store.Control) (any, error) {
	p, err := findPartner(ctx, control, c.Partner)
	if err == nil && c != (partnerLimit{Partner: c.Partner}) {
		p, err = control.UpdatePartner(ctx, c.Partner, func(p store.Partner) store.Partner {
			setLimits(c.limits(&p.Limits))
			return p
		})
	}
	return struct {
		Partner store.PartnerID      `json:"partnerId"`
		Limits  map[string]limitView `json:"limits"`
	}{p.ID, viewLimits(c.limits(&p.Limits))}, err
}

// findPartner returns a partner. KindNotFound: partner.
func findPartner(ctx context.Context, control store.Control, id store.PartnerID) (store.Partner, error) {
	partners, err := control.Partners(ctx)
	if i := slices.IndexFunc(partners, func(p store.Partner) bool { return p.ID == id }); i >= 0 {
		return partners[i], err
	}
	return store.Partner{}, cmp.Or(err, store.NotFound("partner"))
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
