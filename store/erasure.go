package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// Erasure is the removal of what is stored of a person. It has no muid and no identifier in clear, only hashes.
type Erasure struct {
	ID       ErasureID    `json:"id"`
	Merchant MerchantID   `json:"merchantId"`
	Partner  PartnerID    `json:"partnerId"`
	At       time.Time    `json:"at"` // of the request
	State    ErasureState `json:"state"`

	Person   Person `json:"person"`
	Suppress bool   `json:"suppress,omitempty"` // later events are refused

	UpTo       uint64    `json:"upTo,omitempty"` // the engine's: events that came in after that are not concerned; 0: not known yet
	Events     int       `json:"events"`         // that were found, once UpTo is known
	Links      int       `json:"links"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
}

// CheckOwner returns nil for the erasure's partner, and KindForbidden for any other.
func (e Erasure) CheckOwner(partner PartnerID) error { return checkOwner(e.Partner, partner) }

// ErasureID is opaque.
type ErasureID string

// NewErasureID returns a random id.
func NewErasureID() ErasureID { return ErasureID("era_" + rand.Text()) }

// ErasureState is how far an erasure is.
type ErasureState string

// The states, in this order.
const (
	ErasurePending  ErasureState = "pending"  // nothing was removed yet
	ErasureRemoving ErasureState = "removing" // events are being removed
	ErasurePurging  ErasureState = "purging"  // no answer has them; their bytes are being removed from the files
	ErasureDone     ErasureState = "done"     // nothing of them is in any file
)

// Person says by hashes whose events are meant: those with one of the muids, and those whose body has one of the identifiers.
type Person struct {
	MUIDs       []IdentityKey `json:"muids,omitempty"`       // MUIDKey
	Identifiers []IdentityKey `json:"identifiers,omitempty"` // Identity.Keys
}

// MUIDKey returns the SHA-256 of a byte 255 and a muid. No identifier has the same key.
func MUIDKey[M ~string | ~[]byte](muid M) IdentityKey {
	var buf [1 + MaxMUIDLength]byte
	buf[0] = 255
	return sha256.Sum256(append(buf[:1], muid...))
}

// MarshalText returns the key in hexadecimal.
func (k IdentityKey) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, k[:]), nil }

// UnmarshalText is the opposite of MarshalText.
func (k *IdentityKey) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(k)) {
		return hex.ErrLength
	}
	_, err := hex.Decode(k[:], text)
	return err
}

// PersonalRecord is something that is held of a person: an event, or a link of an identifier to a muid.
type PersonalRecord struct {
	Event *Event // nil for a link
	Tag   TagID

	Identifier IdentityKey // of a link: only its hash is stored
	MUID       MUID
}

// Persons is the part of an engine that finds and erases what it has of a person.
//
// A person is named by a muid or by one identifier. The muid of an identifier is the one that it is linked to. To the person
// belong the events of the muid, the events whose body has the identifier, and the links to the muid and of the identifier.
type Persons interface {
	// Erase removes everything that is stored of a person, in the background. When it returns, that is on disk: it is done also
	// after a kill, and again after a backup is restored. Events that come in later are not concerned. With suppress, Record
	// refuses them (Suppressed): those with the person's muid, with the identifier, or with one that was linked to the muid.
	// KindNotFound: merchant. KindInvalid: the person is not named by one muid or one identifier.
	Erase(ctx context.Context, m MerchantID, person Identity, suppress bool) (Erasure, error)
	// Erasure returns an erasure of any partner. KindNotFound: erasure.
	Erasure(ctx context.Context, id ErasureID) (Erasure, error)
	// Erasures returns one page of a merchant's erasures, newest first, and how many it has.
	Erasures(ctx context.Context, m MerchantID, offset, limit int) ([]Erasure, int, error)

	// PersonalData passes everything that is stored of a person to use, until use returns an error: the links, and the events in
	// the order of receipt. A record is valid until use returns. KindInvalid as for Erase.
	PersonalData(ctx context.Context, m MerchantID, person Identity, use func(*PersonalRecord) error) error
}
