package operator

import (
	"context"
	"strconv"

	"mtagd/store"
)

type MerchantCommands struct {
	List    merchantList    `cmd:"" help:"List the merchants of a partner with their tags."`
	Show    merchantShow    `cmd:"" help:"Show a merchant, its tags and its partner."`
	Suspend merchantSuspend `cmd:"" help:"Suspend a merchant: its tags accept no events from the next request on."`
	Resume  merchantResume  `cmd:"" help:"End the suspension of a merchant."`
	Rename  merchantRename  `cmd:"" help:"Change the name of a merchant."`
	Retain  merchantRetain  `cmd:"" help:"Set for how many days the events of a merchant are kept. Older ones are in no answer any more."`
	Delete  merchantDelete  `cmd:"" help:"Delete a merchant with its tags. Its events are in no answer any more. This cannot be undone."`
	Limit   merchantLimit   `cmd:"" help:"Set limits of a merchant; without a flag, show them."`

	Removals merchantRemovals `cmd:"" help:"List the merchants whose events are still to be removed: those that were deleted, and those whose last attempt has failed."`
}

type merchantList struct {
	Partner store.PartnerID `required:"" placeholder:"PARTNER_ID" help:"Id of the partner."`
}

func (c merchantList) apply(ctx context.Context, control store.Control) (any, error) {
	p, err := findPartner(ctx, control, c.Partner)
	if err != nil {
		return nil, err
	}
	all := []merchantView{}
	for {
		page, total, err := control.Merchants(ctx, store.MerchantQuery{Partner: p.ID, Offset: len(all), Limit: 1000})
		if err != nil {
			return nil, err
		}
		all = append(all, views(page, func(m store.Merchant) merchantView { return viewMerchant(p, m) })...)
		if len(page) == 0 || len(all) >= total {
			return all, nil
		}
	}
}

type merchantShow struct {
	Merchant store.MerchantID `arg:"" name:"merchant-id" help:"Id of the merchant."`
}

func (c merchantShow) apply(ctx context.Context, control store.Control) (any, error) {
	m, err := control.Merchant(ctx, store.FoldMerchantID(string(c.Merchant)))
	if err != nil {
		return nil, err
	}
	return showMerchant(ctx, control, m)
}

type merchantSuspend struct {
	Merchant store.MerchantID `arg:"" name:"merchant-id" help:"Id of the merchant."`
	Reason   reason           `placeholder:"TEXT" help:"Why, for the audit log."`
}

func (c merchantSuspend) apply(ctx context.Context, control store.Control) (any, error) {
	return updateMerchant(c.Reason.in(ctx), control, c.Merchant, func(m *store.Merchant) { m.Suspended = true })
}

type merchantResume struct {
	Merchant store.MerchantID `arg:"" name:"merchant-id" help:"Id of the merchant."`
}

func (c merchantResume) apply(ctx context.Context, control store.Control) (any, error) {
	return updateMerchant(ctx, control, c.Merchant, func(m *store.Merchant) { m.Suspended = false })
}

func updateMerchant(ctx context.Context, control store.Control, id store.MerchantID, change func(*store.Merchant)) (any, error) {
	m, err := control.UpdateMerchant(ctx, store.FoldMerchantID(string(id)), func(m store.Merchant) store.Merchant {
		change(&m)
		return m
	})
	if err != nil {
		return nil, err
	}
	return showMerchant(ctx, control, m)
}

type merchantRename struct {
	Merchant store.MerchantID `arg:"" name:"merchant-id" help:"Id of the merchant."`
	Name     string           `required:"" placeholder:"TEXT" help:"The new name."`
}

func (c merchantRename) apply(ctx context.Context, control store.Control) (any, error) {
	name, err := store.CheckName("--name", c.Name)
	if err != nil {
		return nil, err
	}
	return updateMerchant(ctx, control, c.Merchant, func(m *store.Merchant) { m.Name = name })
}

type merchantRetain struct {
	Merchant store.MerchantID `arg:"" name:"merchant-id" help:"Id of the merchant."`
	Days     string           `required:"" placeholder:"N" help:"Days, \"forever\" or \"default\" (the service's default)."`
}

func (c merchantRetain) retention() (store.Retention, error) {
	switch c.Days {
	case "forever":
		return store.Forever, nil
	case "default":
		return 0, nil
	}
	days, err := strconv.ParseInt(c.Days, 10, 64)
	if retention, wrong := store.CheckRetention("--days", days); err == nil && wrong == nil {
		return retention, nil
	}
	return 0, store.Invalid("--days", "must be a number from 1 to %d, forever or default", store.MaxRetention)
}

func (c merchantRetain) apply(ctx context.Context, control store.Control) (any, error) {
	days, err := c.retention()
	if err != nil {
		return nil, err
	}
	return updateMerchant(ctx, control, c.Merchant, func(m *store.Merchant) { m.Retention = days })
}

type merchantDelete struct {
	Merchant store.MerchantID `arg:"" name:"merchant-id" help:"Id of the merchant."`
	Reason   reason           `placeholder:"TEXT" help:"Why, for the audit log."`
}

func (c merchantDelete) apply(ctx context.Context, control store.Control) (any, error) {
	m, err := control.DeleteMerchant(c.Reason.in(ctx), store.FoldMerchantID(string(c.Merchant)))
	if err != nil {
		return nil, err
	}
	return showMerchant(ctx, control, m)
}

type merchantLimit struct {
	Merchant        store.MerchantID `arg:"" name:"merchant-id" help:"Id of the merchant."`
	EventsPerSecond count            `placeholder:"N" help:"Events and look-ups of all its tags; ten seconds' worth may come at once. A stranger needs only a tag id, which is public, to send events."`
	BytesPerDay     size             `placeholder:"SIZE" help:"Bytes stored in a day, such as 10GiB: those of the events, and 128 for each. One client address may store half of them."`
}

func (merchantLimit) Help() string { return limitHelp }

func (c merchantLimit) limits(l *store.MerchantLimits) []limit {
	return []limit{
		{"eventsPerSecond", c.EventsPerSecond.setting, &l.EventsPerSecond, store.DefaultEventsPerSecond},
		{"bytesPerDay", c.BytesPerDay.setting, &l.BytesPerDay, "a share of the free space"},
	}
}

func (c merchantLimit) apply(ctx context.Context, control store.Control) (any, error) {
	id := store.FoldMerchantID(string(c.Merchant))
	m, err := control.Merchant(ctx, id)
	if err == nil && c != (merchantLimit{Merchant: c.Merchant}) {
		m, err = control.UpdateMerchant(ctx, id, func(m store.Merchant) store.Merchant {
			setLimits(c.limits(&m.Limits))
			return m
		})
	}
	return struct {
		Merchant store.MerchantID     `json:"merchantId"`
		Limits   map[string]limitView `json:"limits"`
	}{m.ID, viewLimits(c.limits(&m.Limits))}, err
}

type merchantRemovals struct{}

func (merchantRemovals) apply(ctx context.Context, control store.Control) (any, error) {
	removals, err := control.Removals(ctx)
	return append([]store.Removal{}, removals...), err // never null
}

func showMerchant(ctx context.Context, control store.Control, m store.Merchant) (any, error) {
	p, err := findPartner(ctx, control, m.Partner)
	return viewMerchant(p, m), err
}

type merchantView struct {
	ID        store.MerchantID     `json:"merchantId"`
	Name      string               `json:"name"`
	Domain    string               `json:"domain"`
	CreatedAt timestamp            `json:"createdAt"`
	Suspended bool                 `json:"suspended"`
	Limits    store.MerchantLimits `json:"limits"`        // those that are set
	Retention string               `json:"retentionDays"` // a number, "forever" or "default"
	Partner   partnerRef           `json:"partner"`
	Tags      []tagView            `json:"tags"`

	IdentityRequiresSecret bool `json:"identityRequiresSecret"`
}

func viewMerchant(p store.Partner, m store.Merchant) merchantView {
	return merchantView{m.ID, m.Name, m.Domain, timestamp(m.CreatedAt), m.Suspended, m.Limits, m.Retention.String(), refPartner(p), views(m.Tags, viewTag), m.IdentityRequiresSecret}
}
