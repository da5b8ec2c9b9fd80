package store

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
)

// Merchant is a shop of one partner (spec, Resources: Merchant).
type Merchant struct {
	ID        MerchantID `json:"merchantId"`
	Partner   PartnerID  `json:"partnerId"`
	Name      string     `json:"name"`
	Domain    string     `json:"domain,omitempty"` // as sent when the merchant was created; it registers nothing
	CreatedAt time.Time  `json:"createdAt"`

	// Suspended is set by an operator: no event of the merchant is accepted.
	Suspended bool           `json:"suspended,omitempty"`
	Limits    MerchantLimits `json:"limits,omitzero"`

	// Retention is how long events are kept, by event_time.
	Retention Retention `json:"retentionDays,omitempty"`

	// IdentityRequiresSecret is set by the partner: only requests with one of Secrets link identifiers or are resolved by
	// them. When it is false, requests of everybody who knows the id of one of the merchant's tags are.
	IdentityRequiresSecret bool     `json:"identityRequiresSecret,omitempty"`
	Secrets                []Secret `json:"secrets,omitempty"` // oldest first, at most MaxSecrets

	// DeliverClientDetails is set by the partner: ad platforms get the address and user agent of visitors who agree.
	DeliverClientDetails bool `json:"deliverClientDetails,omitempty"`

	Ordinal uint64 `json:"ordinal"` // its place among the partner's merchants

	// Tags are the merchant's tags, oldest first, at most one of each type.
	Tags []Tag `json:"-"`
}

// Retention is how many days something is kept: a positive number, Forever, or 0 for the operator's default.
type Retention int

// Forever keeps everything.
const Forever Retention = -1

// MaxRetention is the longest time in days, about a century.
const MaxRetention = 36500

// Cutoff returns the time, in UTC, before which events are past the retention; false when there is none.
func (r Retention) Cutoff(now time.Time) (time.Time, bool) {
	if r <= 0 {
		return time.Time{}, false
	}
	return now.UTC().AddDate(0, 0, -int(r)), true
}

// CheckRetention returns an error unless days is from 1 to MaxRetention.
func CheckRetention(field string, days int64) (Retention, error) {
	if days < 1 || days > MaxRetention {
		return 0, Invalid(field, "must be a whole number from 1 to %d, or null for ever", MaxRetention)
	}
	return Retention(days), nil
}

// String returns the days, "forever" or "default".
func (r Retention) String() string {
	switch r {
	case Forever:
		return "forever"
	case 0:
		return "default"
	}
	return strconv.Itoa(int(r))
}

// MerchantQuery selects merchants of a partner.
type MerchantQuery struct {
	Partner PartnerID
	Name    string // part of the name, in any case; empty: any
	Domain  string // part of the merchant's domain or of a tag's, in any case; empty: any

	Offset, Limit int
}

// Matcher returns a function that reports whether a merchant with its tags fits Name and Domain.
func (q MerchantQuery) Matcher() func(Merchant) bool {
	name, domain := fold(q.Name), strings.ToLower(q.Domain)
	hasDomain := func(s string) bool { return strings.Contains(strings.ToLower(s), domain) }
	return func(m Merchant) bool {
		return strings.Contains(fold(m.Name), name) &&
			(hasDomain(m.Domain) || slices.ContainsFunc(m.Tags, func(t Tag) bool { return hasDomain(t.Domain) }))
	}
}

// fold gives texts that differ only in case one form, as Unicode does: σ, ς and Σ are the same letter.
func fold(s string) string { return cases.Fold().String(s) }

// NewMerchant describes a merchant that is created.
type NewMerchant struct {
	Name, Domain           string
	IdentityRequiresSecret bool
	Once                   string // idempotency key of the request; empty: there is none
}

// Merchant returns the merchant with an id, as it is created at the time now.
func (n NewMerchant) Merchant(id MerchantID, partner PartnerID, now time.Time) Merchant {
	return Merchant{ID: id, Partner: partner, Name: n.Name, Domain: n.Domain, CreatedAt: now, IdentityRequiresSecret: n.IdentityRequiresSecret}
}

// Tag returns the merchant's tag of a type; false when it has none.
func (m Merchant) Tag(t TagType) (Tag, bool) {
	for _, tag := range m.Tags {
		if tag.Type == t {
			return tag, true
		}
	}
	return Tag{}, false
}

// MaxSecrets is how many secrets a merchant may have. A backend changes its secret without a gap when two are valid.
const MaxSecrets = 2

// WithSecret returns the merchant with one more secret, unless it has MaxSecrets already.
func (m Merchant) WithSecret(s Secret) Merchant {
	if len(m.Secrets) < MaxSecrets {
		m.Secrets = append(slices.Clone(m.Secrets), s)
	}
	return m
}

// WithoutSecret returns the merchant without the secret of this id.
func (m Merchant) WithoutSecret(id SecretID) Merchant {
	m.Secrets = slices.DeleteFunc(slices.Clone(m.Secrets), func(s Secret) bool { return s.ID == id })
	return m
}

// HasSecret reports whether the merchant has a secret of this id.
func (m Merchant) HasSecret(id SecretID) bool {
	return slices.ContainsFunc(m.Secrets, func(s Secret) bool { return s.ID == id })
}

// CheckOwner returns an error of KindForbidden unless the merchant is the partner's. No other partner may read or change
// it (spec, Authentication, 3).
func (m Merchant) CheckOwner(partner PartnerID) error { return checkOwner(m.Partner, partner) }

const maxNameLength = 256 // characters

// CheckName trims the name of a partner, merchant or key. It returns an error unless 1 to 256 characters are left. It also
// does for characters that are not seen, or that move others: names that look the same must be the same.
func CheckName(field, name string) (string, error) {
	name = strings.TrimSpace(name)
	switch n := utf8.RuneCountInString(name); {
	case n == 0:
		return "", Invalid(field, "is required and must not be empty")
	case n > maxNameLength:
		return "", Invalid(field, "must have at most %d characters", maxNameLength)
	case isDeceptive(name):
		return "", Invalid(field, "must not have control characters, or characters that change the direction of the text or are not seen")
	}
	return name, nil
}

// isDeceptive reports whether a name has a character that nobody sees. Such a character can make the name look like another
// one, or break a line of a log or a terminal. It is allowed where it changes how its neighbour looks.
func isDeceptive(name string) bool {
	all := []rune(name)
	for i, c := range all {
		var before, after rune
		if i > 0 {
			before = all[i-1]
		}
		if i+1 < len(all) {
			after = all[i+1]
		}
		switch {
		case c == '\u200c', c == '\u200d': // joiners: Persian, Indic and other letters, emoji of several parts
			if isUnseen(before) || isUnseen(after) || !isShaped(before) && !isShaped(after) && !unicode.Is(unicode.Variation_Selector, before) {
				return true
			}
		case unicode.Is(unicode.Variation_Selector, c): // forms of ideographs and emoji, and of keys such as 1️⃣
			if after != '\u20e3' && !isShaped(before) && !unicode.In(before, unicode.Han) {
				return true
			}
		case isUnseen(c):
			return true
		}
	}
	return false
}

// isShaped reports whether joiners and variation selectors change how a character is written.
func isShaped(c rune) bool {
	return c > unicode.MaxASCII && (unicode.IsSymbol(c) || unicode.IsPunct(c)) || c == 'ℹ' ||
		unicode.In(c, unicode.Arabic, unicode.Syriac, unicode.Mongolian, unicode.Nko, unicode.Phags_Pa, unicode.Devanagari, unicode.Bengali,
			unicode.Gurmukhi, unicode.Gujarati, unicode.Oriya, unicode.Tamil, unicode.Telugu, unicode.Kannada, unicode.Malayalam, unicode.Sinhala,
			unicode.Khmer, unicode.Myanmar, unicode.Tibetan)
}

// isUnseen reports whether a character has no shape of its own: Unicode's Default_Ignorable_Code_Point, controls, and ends
// of lines. A few format characters do have one, such as the Arabic sign of a year.
func isUnseen(c rune) bool {
	switch c {
	case '\u2028', '\u2029', '\u2800': // ends of a line and of a paragraph, and braille without dots
		return true
	}
	return unicode.IsControl(c) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, c) ||
		unicode.Is(unicode.Cf, c) && !unicode.Is(unicode.Prepended_Concatenation_Mark, c)
}

// CheckUpdate returns an error unless an update has left what it must not change.
func (m Merchant) CheckUpdate(old Merchant) error {
	if m.ID != old.ID || m.Partner != old.Partner || !m.CreatedAt.Equal(old.CreatedAt) {
		return errors.New("a merchant's id, partner and creation time must not change")
	}
	return nil
}
