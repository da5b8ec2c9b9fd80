package store

import (
	"crypto/sha256"
	"strings"
)

// MUID is a tracked-user identifier, made by the browser tag or by the merchant's backend.
type MUID string

// IdentifierKind names what identifies a user beside a muid.
type IdentifierKind uint8

// The kinds of identifier, in their order of precedence when a muid is resolved. The numbers are part
// of what is hashed, so they never change.
const (
	Email    IdentifierKind = 0
	Phone    IdentifierKind = 1
	DeviceID IdentifierKind = 2

	identifierKinds = 3
)

// IdentityKey is the SHA-256 of a normalised identifier and its kind. Only such hashes are stored
// as keys, never the identifier.
type IdentityKey [sha256.Size]byte

// Identity says whose event it is: a muid, identifiers that are linked to one, or both. Its zero
// value is nobody.
type Identity struct {
	MUID MUID // empty when it is to be resolved from the identifiers

	keys [identifierKinds]IdentityKey
	n    uint8
}

// Add adds an identifier as the client sent it. Kinds are added in their order of precedence, each at most
// once. It reports false when nothing is left of the value after normalisation.
func (id *Identity) Add(kind IdentifierKind, value string) bool {
	value = normalise(kind, value)
	if value == "" {
		return false
	}
	var buf [1 + 128]byte // on the stack for all but absurd values
	b := append(buf[:0], byte(kind))
	b = append(b, value...)
	id.keys[id.n] = sha256.Sum256(b)
	id.n++
	return true
}

// Keys returns the identifiers' keys, the one that resolves first in front. The slice is valid as
// long as id is.
func (id *Identity) Keys() []IdentityKey { return id.keys[:id.n] }

// IsZero reports whether there is neither a muid nor an identifier.
func (id *Identity) IsZero() bool { return id.MUID == "" && id.n == 0 }

// normalise folds the ways in which one identifier is written: an email is trimmed and
// lower-cased, a phone number reduced to its digits without a leading 00 (so that +49, 0049 and 49
// are one), a device id trimmed.
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
