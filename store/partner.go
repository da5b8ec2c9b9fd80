package store

import "time"

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
