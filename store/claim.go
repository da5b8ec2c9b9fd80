package store

import (
	"time"

	"golang.org/x/net/publicsuffix"
)

// A server-side tag claims its root domain. A domain has at most one claim, and only the tag that has it can be active.
// A claim can become free in two ways: its DNS is not found correct in time, or leads elsewhere for long. Then whoever
// asks next gets the domain, and the former tag is inactive from that moment on (Tag.LoseClaim).
const (
	// UnverifiedClaimAge is the age at which a claim becomes free when its DNS was never found correct.
	UnverifiedClaimAge = 7 * 24 * time.Hour
	// ElsewhereClaimAge is how long the DNS of a verified claim must lead elsewhere, without a break, before the claim
	// becomes free.
	ElsewhereClaimAge = 30 * 24 * time.Hour
)

// ClaimState is the state of a claim.
type ClaimState string

// The states of a claim.
const (
	ClaimUnverified ClaimState = "unverified" // DNS was not found correct yet
	ClaimLapsed     ClaimState = "lapsed"     // DNS was not found correct in time: the domain is free
	ClaimVerified   ClaimState = "verified"   // DNS was found correct
	ClaimElsewhere  ClaimState = "elsewhere"  // DNS was found correct once, and leads elsewhere now
)

// Claim is a server-side tag's claim to its root domain.
type Claim struct {
	Domain   string
	Partner  PartnerID
	Merchant MerchantID
	Tag      TagID
	Host     string // of the tag
	State    ClaimState

	ClaimedAt      time.Time // zero when it is unknown, as for tags that were verified before claims had a time
	ElsewhereSince time.Time // zero unless State is ClaimElsewhere
	FreeFrom       time.Time // from this time on, another merchant that asks gets the domain; zero: never
}

// Claim returns the tag's claim. The tag must have one: it is a server-side tag, and ClaimLost is not set.
func (t Tag) Claim(now time.Time) Claim {
	c := Claim{Domain: t.Domain, Partner: t.Partner, Merchant: t.Merchant, Tag: t.ID, Host: t.Host, ClaimedAt: t.ClaimedAt}
	switch {
	case !t.Verified:
		c.State, c.FreeFrom = ClaimUnverified, t.ClaimedAt.Add(UnverifiedClaimAge)
		if c.Free(now) {
			c.State = ClaimLapsed
		}
	case !t.ElsewhereSince.IsZero():
		c.State, c.ElsewhereSince, c.FreeFrom = ClaimElsewhere, t.ElsewhereSince, t.ElsewhereSince.Add(ElsewhereClaimAge)
	default:
		c.State = ClaimVerified
	}
	return c
}

// Free reports whether another merchant that asks for the domain gets it.
func (c Claim) Free(now time.Time) bool { return !c.FreeFrom.IsZero() && !now.Before(c.FreeFrom) }

// CheckUnverifiedClaims returns an error when the partner may not make another claim, as it has this many unverified
// ones. Lapsed claims do not count. KindLimited: that is its limit.
func (l PartnerLimits) CheckUnverifiedClaims(unverified int) error {
	if l.UnverifiedClaims.Or(DefaultUnverifiedClaims).allows(unverified + 1) {
		return nil
	}
	return Limited("domain", "cannot be registered now: the partner has %d domains that are not verified yet, which is its limit. "+
		"Verify one of them, wait until one lapses (%d days after it was registered), or ask the operator of the service for more",
		unverified, UnverifiedClaimAge/(24*time.Hour))
}

// Claimable says which names can be a root domain of a server-side tag, or a partner's tracking domain.
type Claimable struct {
	Reserved     []string // the service's own hosts and its CNAME target: nothing under their root domains can be claimed
	AllowPrivate bool     // names whose top-level domain is not public, such as shop.test, can be claimed: for tests
}

// Check returns an error of KindInvalid when a name cannot be claimed. It expects a root domain or a host name that was
// checked by CheckRootDomain or CheckHostName.
func (c Claimable) Check(field, name string) error {
	root := RootDomain(name)
	for _, host := range c.Reserved {
		if RootDomain(host) == root {
			return Invalid(field, "must not be on %s: the service's own hosts are there", root)
		}
	}
	if suffix, icann := publicsuffix.PublicSuffix(name); icann && suffix == name {
		return Invalid(field, "must not be a public suffix")
	}
	if !c.AllowPrivate && !IsPublicName(name) {
		return Invalid(field, "must have a public top-level domain, such as com or de")
	}
	return nil
}
