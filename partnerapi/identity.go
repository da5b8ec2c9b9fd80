package partnerapi

import (
	"context"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

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
	return reply(r, fasthttp.StatusCreated, secretJSON{secret.ID, text, store.FormatTime(secret.CreatedAt)})
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
	return reply(r, fasthttp.StatusOK, a.showMerchant(partner, m))
}
