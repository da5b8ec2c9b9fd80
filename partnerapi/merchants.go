package partnerapi

import (
	"context"
	"time"

	"github.com/goccy/go-json/jsontext"
	"github.com/valyala/fasthttp"

	"mtagd/store"
)

func (a *api) merchantResources() map[string]resource {
	const list, one = "/v1/partners/merchant", "/v1/partners/merchant/{merchantId}"
	return map[string]resource{
		list:                       {"GET": op("list_merchants", a.listMerchants, "page", "limit", "name", "domain"), "POST": op("create_merchant", a.createMerchant)},
		one:                        {"GET": op("read_merchant", a.getMerchant), "PATCH": op("change_merchant", a.changeMerchant), "DELETE": op("delete_merchant", a.deleteMerchant)},
		one + "/secret":            {"POST": op("create_secret", a.createSecret)},
		one + "/secret/{secretId}": {"DELETE": op("delete_secret", a.deleteSecret)},
	}
}

// merchantJSON is the JSON of a merchant (spec, Resources: Merchant).
type merchantJSON struct {
	MerchantID store.MerchantID               `json:"merchantId"`
	TagID      store.TagID                    `json:"tagId,omitempty"` // of the oldest tag
	Name       string                         `json:"name"`
	Domain     string                         `json:"domain,omitempty"`
	CreatedAt  time.Time                      `json:"createdAt"`
	Retention  jsontext.Value                 `json:"retentionDays,omitzero"` // null: for ever; absent: the operator's default
	Suspended  bool                           `json:"suspended,omitzero"`     // the merchant or its partner is
	Tracktags  map[store.TagType]tracktagJSON `json:"tracktags"`

	IdentityRequiresSecret bool         `json:"identityRequiresSecret,omitzero"`
	DeliverClientDetails   bool         `json:"deliverClientDetails,omitzero"`
	Secrets                []secretJSON `json:"secrets,omitempty"` // without their texts

	Usage *usageJSON `json:"usage,omitzero"` // only where merchants are read
}

// usageJSON is what the events of a merchant take.
type usageJSON struct {
	Events uint64 `json:"events"`
	Bytes  uint64 `json:"bytes"`
}

type tracktagJSON struct {
	TagID     store.TagID     `json:"tagId"`
	Subdomain string          `json:"subdomain"` // the tag's host
	Status    store.TagStatus `json:"status"`
	CreatedAt time.Time       `json:"createdAt"`
}

// secretJSON is the JSON of a merchant's secret. Text is only in the answer that creates it.
type secretJSON struct {
	SecretID  store.SecretID   `json:"secretId"`
	Text      store.SecretText `json:"secret,omitempty"`
	CreatedAt time.Time        `json:"createdAt"`
}

func (a *api) showMerchant(partner store.Partner, m store.Merchant) merchantJSON {
	shown := merchantJSON{
		MerchantID: m.ID,
		Name:       m.Name,
		Domain:     m.Domain,
		CreatedAt:  m.CreatedAt,
		Suspended:  m.Suspended || partner.Suspended,
		Tracktags:  make(map[store.TagType]tracktagJSON, len(m.Tags)),

		IdentityRequiresSecret: m.IdentityRequiresSecret,
		DeliverClientDetails:   m.DeliverClientDetails,
	}
	switch m.Retention {
	case 0:
	case store.Forever:
		shown.Retention = jsontext.Value("null")
	default:
		shown.Retention = jsontext.Value(m.Retention.String())
	}
	if len(m.Tags) > 0 {
		shown.TagID = m.Tags[0].ID
	}
	shown.Secrets = each(m.Secrets, func(s store.Secret) secretJSON { return secretJSON{SecretID: s.ID, CreatedAt: s.CreatedAt} })
	for _, t := range m.Tags {
		shown.Tracktags[t.Type] = tracktagJSON{
			TagID:     t.ID,
			Subdomain: a.host(t),
			Status:    t.Status(),
			CreatedAt: t.CreatedAt,
		}
	}
	return shown
}

// listMerchants answers with one page of the partner's merchants, oldest first (spec, List merchants). name and domain are
// parts of the names and domains that are wanted, in any case.
func (a *api) listMerchants(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	p := params{args: r.QueryArgs()}
	w := p.window(merchantsPerPage)
	q := store.MerchantQuery{Partner: partner.ID, Name: p.part("name"), Domain: p.part("domain"), Offset: w.offset(), Limit: w.limit}
	if p.err != nil {
		return p.err
	}
	merchants, total, err := a.findMerchants(ctx, q)
	if err != nil {
		return err
	}
	shown := each(merchants, func(m store.Merchant) merchantJSON { return a.showMerchant(partner, m) })
	if err := a.addUsage(ctx, shown); err != nil {
		return err
	}
	return Reply(r, fasthttp.StatusOK, map[string]any{"merchants": shown, "pagination": w.of(total)})
}

// findMerchants returns a page of merchants. Looking for a part of a name or a domain reads all of the partner's merchants,
// perhaps 50,000, so partners take turns.
func (a *api) findMerchants(ctx context.Context, q store.MerchantQuery) ([]store.Merchant, int, error) {
	if q.Name != "" || q.Domain != "" {
		if err := a.takeTurn(ctx, q.Partner); err != nil {
			return nil, 0, err
		}
		defer a.endTurn(q.Partner)
	}
	return a.Engine.Merchants(ctx, q)
}

// getMerchant answers with a merchant of the partner (spec, Get merchant by id).
func (a *api) getMerchant(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	m, err := a.merchantInPath(ctx, r, partner)
	if err != nil {
		return err
	}
	shown := []merchantJSON{a.showMerchant(partner, m)}
	if err := a.addUsage(ctx, shown); err != nil {
		return err
	}
	return Reply(r, fasthttp.StatusOK, shown[0])
}

// addUsage adds what the merchants' events take. While the engine cannot tell, it leaves that out: merchants can be read
// even when the index of their events is damaged.
func (a *api) addUsage(ctx context.Context, merchants []merchantJSON) error {
	ids := make([]store.MerchantID, len(merchants))
	for i, m := range merchants {
		ids[i] = m.MerchantID
	}
	usage, err := a.Engine.Usage(ctx, ids)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		a.Log.Warn("merchants are shown without the usage of their events", "error", err)
	}
	for i, u := range usage {
		merchants[i].Usage = &usageJSON{u.Events, u.Bytes}
	}
	return nil
}

// createMerchant creates a merchant (spec, Create merchant). The domain is only stored: generateTag is what registers
// one. A request that is repeated with its Idempotency-Key gets the same answer.
func (a *api) createMerchant(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	var in struct {
		Name   string `json:"name"`
		Domain string `json:"domain"`

		IdentityRequiresSecret bool `json:"identityRequiresSecret"`
	}
	if err := decode(r, &in); err != nil {
		return err
	}
	name, err := store.CheckName("name", in.Name)
	if err != nil {
		return err
	}
	if in.Domain != "" {
		if in.Domain, err = store.CheckRootDomain("domain", in.Domain); err != nil {
			return err
		}
	}
	once, err := idempotencyKey(r)
	if err != nil {
		return err
	}
	m, err := a.Engine.AddMerchant(ctx, partner.ID, store.NewMerchant{Name: name, Domain: in.Domain, IdentityRequiresSecret: in.IdentityRequiresSecret, Once: once})
	if err != nil {
		return err
	}
	return Reply(r, fasthttp.StatusCreated, struct {
		MerchantID store.MerchantID `json:"merchantId"`
		Name       string           `json:"name"`
		Domain     string           `json:"domain,omitempty"`
		CreatedAt  time.Time        `json:"createdAt"`

		IdentityRequiresSecret bool `json:"identityRequiresSecret,omitzero"`
	}{m.ID, m.Name, m.Domain, m.CreatedAt, m.IdentityRequiresSecret})
}

// deleteMerchant deletes a merchant with its tags and its events.
func (a *api) deleteMerchant(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	m, err := a.merchantInPath(ctx, r, partner)
	if err != nil {
		return err
	}
	if _, err := a.Engine.DeleteMerchant(ctx, m.ID); store.KindOf(err) == store.KindNotFound { // since a moment ago
		return errNoMerchant
	} else if err != nil {
		return err
	}
	return Reply(r, fasthttp.StatusOK, map[string]any{"merchantId": m.ID, "deleted": true})
}
