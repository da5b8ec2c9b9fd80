package partnerapi

import (
	"context"
	"math"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

func (a *api) keyResources() map[string]resource {
	return map[string]resource{
		"/v1/partners/key":         {"GET": op("list_keys", a.listKeys), "POST": op("issue_key", a.issueKey)},
		"/v1/partners/key/{keyId}": {"DELETE": op("revoke_key", a.revokeKey, "evenLast")},
		"/v1/partners/config":      {"GET": op("read_config", a.readConfig)},
	}
}

// keyJSON is the JSON of an API key. Text is only in the answer that issues it.
type keyJSON struct {
	KeyID      store.KeyID  `json:"keyId"`
	Text       store.APIKey `json:"apiKey,omitempty"`
	Name       string       `json:"name"`
	Scope      string       `json:"scope"`
	Personal   bool         `json:"personalData,omitzero"`
	Current    bool         `json:"current"` // it is the key of the request, or of its session
	CreatedAt  time.Time    `json:"createdAt"`
	ExpiresAt  *time.Time   `json:"expiresAt"`
	RevokedAt  *time.Time   `json:"revokedAt"`
	LastUsedAt time.Time    `json:"lastUsedAt"` // null: never
}

func showKey(r *fasthttp.RequestCtx, k store.Key) keyJSON {
	return keyJSON{KeyID: k.ID, Name: k.Name, Scope: k.Scope.String(), Personal: k.Personal, Current: k.ID == callerOf(r).key.ID,
		CreatedAt: k.CreatedAt, ExpiresAt: k.ExpiresAt, RevokedAt: k.RevokedAt, LastUsedAt: k.LastUsedAt}
}

// listKeys answers with the partner's keys, oldest first, without their secrets.
func (a *api) listKeys(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	keys, err := a.Engine.Keys(ctx, partner.ID)
	if err != nil {
		return err
	}
	return Reply(r, fasthttp.StatusOK, map[string]any{"keys": each(keys, func(k store.Key) keyJSON { return showKey(r, k) })})
}

// issueKey issues a key for the partner.
func (a *api) issueKey(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	var in struct {
		Name      string  `json:"name"`
		Personal  bool    `json:"personalData"`
		Scope     *string `json:"scope"`     // an empty one, such as of a variable that is not set, must not mean full
		ExpiresAt *string `json:"expiresAt"` // nor that the key never expires
	}
	if err := decodeChange(r, &in); err != nil {
		return err
	}
	name, err := store.CheckName("name", in.Name)
	if err != nil {
		return err
	}
	opt := store.KeyOptions{Name: name, Personal: in.Personal}
	if in.Scope != nil {
		if opt.Scope, err = store.ParseScope("scope", *in.Scope); err != nil {
			return err
		}
	}
	if err := opt.CheckPersonal("personalData"); err != nil {
		return err
	}
	if in.ExpiresAt != nil {
		at, ok := store.ParseTime(*in.ExpiresAt)
		opt.ExpiresIn = at.Sub(a.Now())
		switch {
		case !ok || opt.ExpiresIn <= 0:
			return store.Invalid("expiresAt", "must be an RFC 3339 time in the future, such as 2027-11-20T08:30:00Z")
		case opt.ExpiresIn == math.MaxInt64: // what Sub returns for more
			return store.Invalid("expiresAt", "must be less than 292 years ahead; leave it out for a key that never expires")
		}
	}
	if opt.Once, err = idempotencyKey(r); err != nil {
		return err
	}
	k, text, err := a.Engine.IssueKey(ctx, partner.ID, opt)
	if err != nil {
		return err
	}
	shown := showKey(r, k)
	shown.Text = text
	return Reply(r, fasthttp.StatusCreated, shown)
}

// revokeKey revokes a key of the partner, and answers with it. The last key that can change anything is kept, unless the
// request says that it is meant: without one only the operator can help.
func (a *api) revokeKey(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	p := params{args: r.QueryArgs()}
	evenLast := p.word("evenLast", "false", "true") == "true"
	if p.err != nil {
		return p.err
	}
	id := store.KeyID(pathParam(r, "keyId"))
	if k, ok := a.Engine.Directory().Key(id); !ok || k.Partner != partner.ID {
		return errNoKey
	}
	k, err := a.Engine.RevokeKey(ctx, id, evenLast)
	switch {
	case store.KindOf(err) == store.KindConflict:
		return errLastKey
	case store.KindOf(err) == store.KindNotFound: // since a moment ago
		return errNoKey
	case err != nil:
		return err
	}
	return Reply(r, fasthttp.StatusOK, showKey(r, k))
}

// readConfig answers with what is enabled for the partner (spec, Partner configuration).
func (a *api) readConfig(_ context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	type features struct {
		Preverified bool `json:"preverified"`
		ClientSide  bool `json:"clientSide"`
		ServerSide  bool `json:"serverSide"`
	}
	enabled := partner.PreverifiedEnabled()
	return Reply(r, fasthttp.StatusOK, struct {
		PartnerID          store.PartnerID `json:"partnerId"`
		PreverifiedEnabled bool            `json:"preverifiedEnabled"`
		PreverifiedDomain  string          `json:"preverifiedDomain"`
		Features           features        `json:"features"`
	}{partner.ID, enabled, partner.TrackingDomain, features{enabled, true, true}})
}
