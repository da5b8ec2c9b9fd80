package store

import (
	"context"
	"errors"
	"time"
)

// Partner owns merchants, and authenticates to the partner API with a Key.
type Partner struct {
	ID        PartnerID `json:"partnerId"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"createdAt"`

	// TrackingDomain is the host of the partner's preverified tags; empty while preverified access is not
	// enabled.
	TrackingDomain string `json:"preverifiedDomain"`

	// Suspended is set by an operator: no event of the partner's merchants is accepted, and nothing can be changed.
	Suspended bool          `json:"suspended,omitempty"`
	Limits    PartnerLimits `json:"limits,omitzero"`
}

// PreverifiedEnabled reports whether the partner may generate preverified tags.
func (p Partner) PreverifiedEnabled() bool { return p.TrackingDomain != "" }

// checkOwner returns an error of KindForbidden unless the partner is the owner of a resource.
func checkOwner(owner, partner PartnerID) error {
	if owner != partner {
		return &Error{Kind: KindForbidden, Message: "belongs to another partner"}
	}
	return nil
}

// CheckUpdate returns an error unless an update has left what it must not change.
func (p Partner) CheckUpdate(old Partner) error {
	if p.ID != old.ID || !p.CreatedAt.Equal(old.CreatedAt) || p.TrackingDomain != old.TrackingDomain {
		return errors.New("a partner's id, creation time and tracking domain must not change")
	}
	return nil
}

type partnerKey struct{}

// WithPartner returns a context whose queries are a partner's. Engines that run only some at once let partners take turns.
func WithPartner(ctx context.Context, id PartnerID) context.Context {
	return context.WithValue(ctx, partnerKey{}, id)
}

// PartnerOf returns whose queries a context's are; "" for those of the service and of tag hosts.
func PartnerOf(ctx context.Context) PartnerID {
	id, _ := ctx.Value(partnerKey{}).(PartnerID)
	return id
}
