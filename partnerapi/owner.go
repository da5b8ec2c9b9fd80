package partnerapi

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// The errors for what does not exist.
var (
	errNoRoute    = notFound("no such route")
	errNoMerchant = notFound("no such merchant")
	errNoSecret   = notFound("no such secret")
	errNoKey      = notFound("no such key")
	errNoErasure  = notFound("no such erasure")
	errNoTag      = notFound("no such tag")
	errNoTagYet   = notFound("the merchant has no tag yet") // the merchant exists, so the partner is told
)

func notFound(why string) *store.Error { return &store.Error{Kind: store.KindNotFound, Message: why} }

// The errors for what an operator has suspended, and for what a key of scope read may not do. The partner sees their
// messages.
var (
	errPartnerSuspended  = forbidden("your access is suspended: you can read, but not change anything")
	errMerchantSuspended = forbidden("the merchant is suspended")
	errTagSuspended      = forbidden("the tag or its merchant is suspended")
	errReadOnlyKey       = forbidden("this API key can read, but not change anything")
	errImpersonalKey     = forbidden("this API key was not issued for personal data")
)

func forbidden(why string) *store.Error { return &store.Error{Kind: store.KindForbidden, Message: why} }

// errLastKey is the error for revoking the last key that can change anything.
var errLastKey = &store.Error{Kind: store.KindConflict, Message: "This is your last API key that can change anything. " +
	"Issue another one first, or add ?evenLast=true"}

// errKeyEnded ends a request whose key or session ends meanwhile.
var errKeyEnded = errors.New("the API key was revoked or has expired meanwhile")

// activeMerchant returns a merchant of the partner, as merchant does, unless it is suspended.
func (a *api) activeMerchant(ctx context.Context, partner store.Partner, id string) (store.Merchant, error) {
	m, err := a.merchant(ctx, partner, id)
	if err == nil && m.Suspended {
		return store.Merchant{}, errMerchantSuspended
	}
	return m, err
}

// merchantInPath returns the merchant whose id is in the path. One of another partner looks like one that does not exist
// (spec, Authentication, 3).
func (a *api) merchantInPath(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) (store.Merchant, error) {
	id := pathParam(r, "merchantId")
	if !store.IsUUIDv4(id) {
		return store.Merchant{}, store.Invalid("merchantId", "must be a UUID v4")
	}
	m, err := a.merchant(ctx, partner, id)
	return m, hide(err, errNoMerchant)
}

// merchant returns a merchant of the partner. After an error it is the zero merchant. KindNotFound: it does not exist.
// KindForbidden: it is another partner's.
func (a *api) merchant(ctx context.Context, partner store.Partner, id string) (store.Merchant, error) {
	m, err := a.Engine.Merchant(ctx, store.FoldMerchantID(id))
	return owned(partner, m, err, errNoMerchant)
}

// merchantWithTag returns a merchant of the partner that has tags, and whether tag is one of them. An empty tag stands for
// all of them.
func (a *api) merchantWithTag(ctx context.Context, partner store.Partner, id string, tag store.TagID) (m store.Merchant, has bool, err error) {
	m, err = a.merchant(ctx, partner, id)
	if err == nil && len(m.Tags) == 0 {
		err = errNoTagYet
	}
	has = tag == "" || slices.ContainsFunc(m.Tags, func(t store.Tag) bool { return t.ID == tag })
	return m, has && err == nil, err
}

// tag returns a tag of the partner. Its errors are those of merchant.
func (a *api) tag(ctx context.Context, partner store.Partner, id string) (store.Tag, error) {
	t, err := a.Engine.Tag(ctx, store.TagID(id))
	return owned(partner, t, err, errNoTag)
}

// owned returns v when err is nil and v is the partner's. Otherwise it returns an error and the zero value, so that
// nothing of another partner gets out. v and err are the engine's results; absent replaces its KindNotFound.
func owned[T interface {
	CheckOwner(partner store.PartnerID) error
}](partner store.Partner, v T, err, absent error) (T, error) {
	if store.KindOf(err) == store.KindNotFound {
		err = absent
	}
	if err == nil {
		err = v.CheckOwner(partner.ID)
	}
	if err != nil {
		var none T
		return none, err
	}
	return v, nil
}

// first chooses the error to answer when a resource was not found and the body may be wrong, too. The error of an id that no
// resource can have comes first, then that of the body.
func first(absent, body error) error {
	if store.KindOf(absent) == store.KindInvalid {
		return absent
	}
	return cmp.Or(body, absent)
}

// hide turns KindForbidden into absent. The requests that read one resource by its id use it: a resource of another
// partner then looks like one that does not exist (spec, Authentication, 3).
func hide(err, absent error) error {
	if store.KindOf(err) == store.KindForbidden {
		return absent
	}
	return err
}
