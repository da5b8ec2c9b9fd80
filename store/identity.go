package store

import (
	"crypto/sha256"
	"math/bits"
	"strings"
)

// MUID is a tracked-user identifier, made by the browser tag or by the merchant's backend.
type MUID string

// IdentifierKind is a kind of identifier that a user may have besides a muid.
type IdentifierKind uint8

// The kinds of identifier, in order of precedence: when several are linked, the first of them gives the muid. The numbers
// are hashed into each IdentityKey, so they never change.
const (
	Email    IdentifierKind = 0
	Phone    IdentifierKind = 1
	DeviceID IdentifierKind = 2

	identifierKinds = 3
)

// IdentityKey is the SHA-256 of an identifier's kind (one byte) and its normalised value. Only these hashes are stored,
// never the identifier.
type IdentityKey [sha256.Size]byte

// LinkSource is who says that an identifier and a muid belong together. The greater one counts.
type LinkSource uint8

// The sources. Links of the first one are claimed, all others are trusted. The numbers are stored, so they never change.
const (
	ByAnyone LinkSource = 0 // a request that anyone can send who knows the tag id and the muid
	ByCookie LinkSource = 1 // the cookie of the tag host, when nothing was linked to its muid yet
	BySecret LinkSource = 2 // a request with the merchant's secret
)

// Bounds of what is kept of the links of an identifier.
const (
	// MaxCookieLinks is how many links ByCookie an identifier may have, former ones included. All of them are kept. A
	// stranger can make such links, with a new cookie for each. So there is a limit, and later ones count as claimed.
	MaxCookieLinks = 250

	// MaxFormerLinks is how many former links ByAnyone of an identifier are kept. Of more, the first ones are.
	MaxFormerLinks = 100
)

// IsTrusted reports whether links of this source say whose events a muid has.
func (s LinkSource) IsTrusted() bool { return s > ByAnyone }

// Identity says whose event it is: by a muid, by identifiers, or by both. The zero value identifies nobody.
type Identity struct {
	MUID   MUID       // empty: the engine resolves it from the identifiers
	Source LinkSource // who says that the identifiers and the muid belong together

	keys  [identifierKinds]IdentityKey // the first n, in order of precedence
	n     uint8
	added uint8 // a bit for each kind in keys
}

// Add adds an identifier as the client sent it. Identifiers may be added in any order. When a kind is added twice, the
// last value counts. Add reports false, and changes nothing, when the value is empty after normalisation.
func (id *Identity) Add(kind IdentifierKind, value string) bool {
	value = normalise(kind, value)
	if value == "" {
		return false
	}
	bit := uint8(1) << kind
	at := bits.OnesCount8(id.added & (bit - 1)) // how many kinds of higher precedence are in keys
	if id.added&bit == 0 {
		copy(id.keys[at+1:], id.keys[at:id.n])
		id.added |= bit
		id.n++
	}
	var b [256]byte // so that nothing is allocated for usual identifiers
	id.keys[at] = sha256.Sum256(append(append(b[:0], byte(kind)), value...))
	return true
}

// Keys returns the keys of the identifiers, in order of precedence. The result aliases id.
func (id *Identity) Keys() []IdentityKey { return id.keys[:id.n] }

// IsZero reports whether there is neither a muid nor an identifier.
func (id *Identity) IsZero() bool { return id.MUID == "" && id.n == 0 }

// normalise gives all spellings of an identifier one form. An email is trimmed and lower-cased. A phone number is reduced
// to its digits without a leading 00, so +49, 0049 and 49 are the same. A device id is trimmed.
func normalise(kind IdentifierKind, value string) string {
	value = strings.TrimSpace(value)
	switch kind {
	case Email:
		return strings.ToLower(value)
	case Phone:
		digits := strings.Map(func(r rune) rune {
			if r < '0' || r > '9' {
				return -1
			}
			return r
		}, value)
		return strings.TrimPrefix(digits, "00")
	}
	return value
}
