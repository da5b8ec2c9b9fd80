package partnerapi

import (
	"context"

	"github.com/goccy/go-json/jsontext"
	"github.com/goccy/go-json/v2"
	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// merchantChange is the body of changeMerchant. A field that is nil was not sent. Where null has a meaning, it arrives as
// the JSON null.
type merchantChange struct {
	Name                   jsontext.Value `json:"name"`
	Domain                 jsontext.Value `json:"domain"`        // null: none
	RetentionDays          jsontext.Value `json:"retentionDays"` // null: for ever
	IdentityRequiresSecret *bool          `json:"identityRequiresSecret"`
	DeliverClientDetails   *bool          `json:"deliverClientDetails"`
}

// changeMerchant changes the fields of a merchant that the request has, and answers with the merchant. A name that is no
// such field is refused: a typing error must not look like a change.
func (a *api) changeMerchant(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	m, absent := a.merchantInPath(ctx, r, partner)
	change, err := readMerchantChange(r)
	if err := first(absent, err); err != nil {
		return err
	}
	if m, err = a.Engine.UpdateMerchant(ctx, m.ID, change); err != nil {
		return err
	}
	return Reply(r, fasthttp.StatusOK, a.showMerchant(partner, m))
}

// readMerchantChange checks the fields, and returns the change that they ask for.
func readMerchantChange(r *fasthttp.RequestCtx) (func(store.Merchant) store.Merchant, error) {
	var in merchantChange
	if err := decodeChange(r, &in); err != nil {
		return nil, err
	}
	name, err := checked("name", in.Name, store.CheckName)
	if err != nil {
		return nil, err
	}
	var domain string
	if in.Domain.Kind() != 'n' {
		if domain, err = checked("domain", in.Domain, store.CheckRootDomain); err != nil {
			return nil, err
		}
	}
	days, err := retention(in.RetentionDays)
	if err != nil {
		return nil, err
	}
	return func(m store.Merchant) store.Merchant {
		if in.Name != nil {
			m.Name = name
		}
		if in.Domain != nil {
			m.Domain = domain
		}
		if in.RetentionDays != nil {
			m.Retention = days
		}
		if in.IdentityRequiresSecret != nil {
			m.IdentityRequiresSecret = *in.IdentityRequiresSecret
		}
		if in.DeliverClientDetails != nil {
			m.DeliverClientDetails = *in.DeliverClientDetails
		}
		return m
	}, nil
}

// checked reads a string that must pass a check; "" when it was not sent.
func checked(field string, v jsontext.Value, check func(field, s string) (string, error)) (s string, err error) {
	if v == nil {
		return "", nil
	}
	if v.Kind() != '"' || json.Unmarshal(v, &s) != nil {
		return "", store.Invalid(field, "must be a string")
	}
	return check(field, s)
}

// retention reads a number of days; null is for ever.
func retention(v jsontext.Value) (store.Retention, error) {
	var days int64 // 0 is refused
	switch v.Kind() {
	case 0: // it was not sent
		return 0, nil
	case 'n':
		return store.Forever, nil
	case '0':
		if json.Unmarshal(v, &days) != nil {
			days = 0
		}
	}
	return store.CheckRetention("retentionDays", days)
}

// createSecret creates a secret of a merchant. It never replaces one: when the answer to a first request was lost, a second
// one must not end the secret that the merchant uses.
func (a *api) createSecret(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	m, err := a.merchantInPath(ctx, r, partner)
	if err != nil {
		return err
	}
	secret, text := store.NewSecret(a.Now().UTC())
	m, err = a.Engine.UpdateMerchant(ctx, m.ID, func(m store.Merchant) store.Merchant { return m.WithSecret(secret) })
	if err != nil {
		return err
	}
	if !m.HasSecret(secret.ID) {
		return store.Limited("secret", "cannot be created: the merchant has %d secrets, which is the limit. Delete one first", store.MaxSecrets)
	}
	return Reply(r, fasthttp.StatusCreated, secretJSON{secret.ID, text, secret.CreatedAt})
}

// deleteSecret deletes a secret of a merchant, and answers with the merchant.
func (a *api) deleteSecret(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	m, err := a.merchantInPath(ctx, r, partner)
	if err != nil {
		return err
	}
	id := store.SecretID(pathParam(r, "secretId"))
	if !m.HasSecret(id) {
		return errNoSecret
	}
	m, err = a.Engine.UpdateMerchant(ctx, m.ID, func(m store.Merchant) store.Merchant { return m.WithoutSecret(id) })
	if err != nil {
		return err
	}
	return Reply(r, fasthttp.StatusOK, a.showMerchant(partner, m))
}
