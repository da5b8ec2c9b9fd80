package store

import "errors"
import "time"

// TagType is one of the three types of tag (spec, "What the service does").
type TagType string

// The types of tag, in the spec's words.
const (
	ClientSide  TagType = "client-side"
	ServerSide  TagType = "server-side"
	Preverified TagType = "preverified"
)

// ParseTagType reads a type as a client writes it. It accepts "server_side" for "server-side" (spec, Generate tag: type).
func ParseTagType(s string) (TagType, error) {
	switch t := TagType(s); t {
	case ClientSide, ServerSide, Preverified:
		return t, nil
	case "server_side":
		return ServerSide, nil
	}
	return "", Invalid("type", "must be one of client-side, server-side, preverified")
}

// NeedsRecord reports whether the generate response has a DNS record for tags of this type (spec, Tracking tag: record).
func (t TagType) NeedsRecord() bool { return t != ClientSide }

// TagStatus is a tag's state on the wire.
type TagStatus string

// The states of a tag (spec, "States and transitions").
const (
	Active   TagStatus = "active"
	Inactive TagStatus = "inactive"
)

// Lifecycle is the progress of an installation, as partners see it.
type Lifecycle string

// The stages of the lifecycle, in their order.
const (
	WaitingForDNS    Lifecycle = "waiting_for_dns"
	WaitingForEvents Lifecycle = "waiting_for_events"
	Receiving        Lifecycle = "receiving"
)

// Tag is a tracking tag of one merchant (spec, Resources: Tracking tag).
type Tag struct {
	ID        TagID      `json:"tagId"`
	Merchant  MerchantID `json:"merchantId"`
	Partner   PartnerID  `json:"partnerId"`
	Type      TagType    `json:"type"`
	CreatedAt time.Time  `json:"createdAt"`

	// Label is the name of the DNS record, of the form mtag-xxxx. It is empty for client-side tags.
	Label string `json:"label,omitempty"`
	// Domain is the root domain of a server-side tag. It is empty for other types.
	Domain string `json:"domain,omitempty"`
	// ClaimedAt is when a server-side tag got the claim to its domain.
	ClaimedAt time.Time `json:"claimedAt,omitzero"`
	// ClaimLost is set when a server-side tag has no claim to its domain any more: another tag took it, or the operator
	// released it. The engine knows it from the domain's claim.
	ClaimLost bool `json:"-"`
	// Host is the host that serves the tag: <label>.<domain> for a server-side tag, the partner's tracking domain for a
	// preverified one. It is empty for client-side tags: their shared host is configuration.
	Host string `json:"-"`

	// Verified is set when DNS is first found correct. It stays set until the tag loses its claim.
	Verified bool `json:"isVerified"`
	// Connected is set when DNS is found correct, and cleared when DNS is found wrong. Other findings leave it as it is.
	Connected bool `json:"isConnected"`
	// ElsewhereSince is the time of the first finding since which DNS of a verified tag was found wrong, and never
	// correct. It is zero while DNS is correct, and when the time is unknown.
	ElsewhereSince time.Time `json:"elsewhereSince,omitzero"`

	// Suspended is set by an operator: the tag accepts no events.
	Suspended bool `json:"suspended,omitempty"`

	// DNS is the finding of the last verify, or of a later recheck that changed Connected. It is nil until one of these.
	DNS *DNSFinding `json:"dns,omitempty"`
}

// CheckOwner returns an error of KindForbidden unless the tag is the partner's (see Merchant.CheckOwner).
func (t Tag) CheckOwner(partner PartnerID) error { return checkOwner(t.Partner, partner) }

// Status is the tag's state on the wire. A server-side tag is inactive until its DNS has been correct once, and without
// the claim to its domain. Other tags are active from the start.
func (t Tag) Status() TagStatus {
	if t.Type == ServerSide && (!t.Verified || t.ClaimLost) {
		return Inactive
	}
	return Active
}

// Lifecycle is the stage of the installation. lastEvent is zero before the first event.
func (t Tag) Lifecycle(lastEvent time.Time) Lifecycle {
	switch {
	case t.Status() == Inactive:
		return WaitingForDNS
	case lastEvent.IsZero():
		return WaitingForEvents
	default:
		return Receiving
	}
}

// NewTag returns a new tag (spec, "States and transitions", rows "(no tag)"). label and domain are empty when the type
// has none. A preverified tag still has no host: WithHost sets it.
func NewTag(m Merchant, t TagType, label, domain string, now time.Time) Tag {
	tag := Tag{ID: NewTagID(t), Merchant: m.ID, Partner: m.Partner, Type: t, CreatedAt: now, Label: label, Domain: domain}
	if t == ServerSide {
		tag = tag.TakeClaim(now)
	} else {
		// There is no DNS to wait for: the host is shared, or the partner has configured its DNS.
		tag.Verified, tag.Connected = true, true
	}
	return tag.WithHost("")
}

// TakeClaim returns a server-side tag that gets the claim to its domain.
func (t Tag) TakeClaim(now time.Time) Tag {
	t.ClaimLost = false
	t.ClaimedAt = now.Round(0) // without the monotonic clock, which stands still while a machine sleeps
	return t
}

// LoseClaim returns a server-side tag that loses the claim to its domain. It is inactive, and its DNS must be found
// correct again before it can take a claim.
func (t Tag) LoseClaim() Tag {
	t.ClaimLost = true
	t.Verified, t.Connected, t.ElsewhereSince, t.DNS = false, false, time.Time{}, nil
	return t
}

// WithHost returns the tag with its Host set. Only a preverified tag needs trackingDomain, its partner's.
func (t Tag) WithHost(trackingDomain string) Tag {
	switch t.Type {
	case ServerSide:
		t.Host = t.Label + "." + t.Domain
	case Preverified:
		t.Host = trackingDomain
	}
	return t
}

// AfterVerify returns the tag after verify has checked its host's DNS (spec, "States and transitions"):
//
//   - correct: the tag becomes verified and connected, and so active. When it had lost its claim, it needs it again: see
//     Control.UpdateTag.
//   - wrong: the tag becomes not connected. A tag that was verified before stays verified, and so stays active; from
//     now on its DNS leads elsewhere.
//   - pending or unreachable: the flags stay as they are.
//
// In each case DNS becomes the finding.
func (t Tag) AfterVerify(f DNSFinding) Tag {
	if f.Verdict.IsCertain() {
		t.Connected = f.Verdict == DNSCorrect
		t.Verified = t.Verified || t.Connected
		switch {
		case t.Connected:
			t.ElsewhereSince = time.Time{}
		case t.Verified && t.ElsewhereSince.IsZero():
			t.ElsewhereSince = f.CheckedAt.Round(0)
		}
	}
	t.DNS = &f
	return t
}

// AfterRecheck returns the tag after the hourly recheck of its host's DNS. A finding that changes Connected or
// ElsewhereSince has the same effect as in AfterVerify; any other finding leaves the tag as it is. A recheck never
// activates a tag: an inactive tag stays as it is too.
func (t Tag) AfterRecheck(f DNSFinding) Tag {
	after := t.AfterVerify(f)
	if t.Status() == Inactive || (after.Connected == t.Connected && after.ElsewhereSince.Equal(t.ElsewhereSince)) {
		return t
	}
	return after
}

// CheckUpdate returns an error unless an update has left what it must not change.
func (t Tag) CheckUpdate(old Tag) error {
	if t.ID != old.ID || t.Merchant != old.Merchant || t.Partner != old.Partner || t.Type != old.Type ||
		t.Label != old.Label || t.Domain != old.Domain || t.ClaimLost != old.ClaimLost || !t.ClaimedAt.Equal(old.ClaimedAt) {
		return errors.New("a tag's id, owner, type, label, domain and claim must not change")
	}
	return nil
}
