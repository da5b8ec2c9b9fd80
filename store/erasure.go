package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"iter"
	"slices"
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

	Begun      bool      `json:"begun,omitempty"` // what came in since the engine began may be left out
	UpTo       uint64    `json:"upTo,omitempty"`  // the engine's: events that came in after that are not concerned; 0: not known yet
	Events     int       `json:"events"`          // that were found, once UpTo is known
	Claimed    int       `json:"claimedEvents"`   // that stay, because only claimed links lead to them (Person)
	Links      int       `json:"links"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`

	Tries
}

// MaxOpenErasures is how many erasures of a partner may be open. Each is in memory until it is done.
const MaxOpenErasures = 1000

// Admit returns the erasure of open that e repeats: one of the same person of the same merchant that has not begun, so that
// it takes the same events. Without one, the id is empty. open are the erasures that are not done, of any partner. KindBusy:
// the partner has MaxOpenErasures.
func (e Erasure) Admit(open iter.Seq[Erasure]) (same Erasure, err error) {
	n := 0
	for other := range open {
		if other.Partner != e.Partner {
			continue
		}
		if n++; other.Merchant == e.Merchant && !other.Begun && other.UpTo == 0 && other.State == ErasurePending && other.Person.equals(e.Person) {
			return other, nil
		}
	}
	if n >= MaxOpenErasures {
		return same, Busy("too many erasures are not done yet")
	}
	return same, nil
}

// CheckOwner returns nil for the erasure's partner, and KindForbidden for any other.
func (e Erasure) CheckOwner(partner PartnerID) error { return checkOwner(e.Partner, partner) }

// ErasureID is opaque.
type ErasureID string

// NewErasureID returns a random id.
func NewErasureID() ErasureID { return ErasureID("era_" + rand.Text()) }

// ErasureState is how far an erasure is, or another removal.
type ErasureState string

// The states, in this order.
const (
	ErasurePending  ErasureState = "pending"  // nothing was removed yet
	ErasureRemoving ErasureState = "removing" // events are being removed
	ErasurePurging  ErasureState = "purging"  // no answer has them; their bytes are being removed from the files
	ErasureDone     ErasureState = "done"     // nothing of them is in any file
)

// Person says by hashes whose events are meant: those with one of the muids, or with one of the identifiers in their body.
//
// Anyone can claim that an identifier and a muid belong together. So an event that only such a claim leads to is counted,
// and not taken: that of a muid in Claimed, and that of a muid in MUIDs if its sender gave only identifiers, of which a link
// led to the muid that did not come with the merchant's secret.
type Person struct {
	MUIDs       []IdentityKey `json:"muids,omitempty"`       // MUIDKey
	Identifiers []IdentityKey `json:"identifiers,omitempty"` // Identity.Keys
	Claimed     []IdentityKey `json:"claimed,omitempty"`     // MUIDKey
	WithClaimed bool          `json:"withClaimed,omitempty"` // all are taken; then Claimed is empty
}

func (p Person) equals(other Person) bool {
	return slices.Equal(p.MUIDs, other.MUIDs) && slices.Equal(p.Identifiers, other.Identifiers) && slices.Equal(p.Claimed, other.Claimed) &&
		p.WithClaimed == other.WithClaimed
}

// MUIDKey returns the SHA-256 of a byte 255 and a muid. No identifier has the same key.
func MUIDKey[M ~string | ~[]byte](muid M) IdentityKey {
	var b [1 + MaxMUIDLength]byte // so that nothing is allocated
	return sha256.Sum256(append(append(b[:0], 255), muid...))
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

	Link
}

// Link says that an identifier and a muid belong together.
type Link struct {
	Identifier IdentityKey // only its hash is stored
	MUID       MUID
	Source     LinkSource
}

// ErasureOptions are what an erasure may do beyond removing what trusted links lead to.
type ErasureOptions struct {
	Suppress bool // later events are refused
	Claimed  bool // also what only claimed links lead to goes
}

// Persons is the part of an engine that finds and erases what it has of a person.
//
// A person is named by a muid or by one identifier. An identifier stands for all muids to which a trusted link ever led from
// it. The person owns the events of these muids, the events whose body has the identifier, and the links from the identifier
// or to the muids. Events to which only claimed links lead are counted; they belong to the person on request (Person).
type Persons interface {
	// Erase removes everything that is stored of a person, in the background. When it returns, that is on disk: it is done
	// also after a kill, and again after a backup is restored. Events that come in later are not concerned. With suppress,
	// Record refuses them (Suppressed): those with one of the person's muids, with the identifier, or with one that a link
	// with the merchant's secret led to them. An erasure of the same person that has not begun yet is returned again, with
	// suppress added. KindNotFound: merchant. KindInvalid: the person is not named by one muid or one identifier. KindBusy:
	// the partner has MaxOpenErasures.
	Erase(ctx context.Context, m MerchantID, person Identity, opt ErasureOptions) (Erasure, error)
	// Erasure returns an erasure of any partner. KindNotFound: erasure.
	Erasure(ctx context.Context, id ErasureID) (Erasure, error)
	// Erasures returns one page of a merchant's erasures, newest first, and how many it has.
	Erasures(ctx context.Context, m MerchantID, offset, limit int) ([]Erasure, int, error)

	// PersonalData passes everything that is stored of a person to use, until use returns an error: the links, and the
	// events in the order of receipt. A record is valid until use returns. It returns how many events were left out
	// because only claimed links lead to them; none are with withClaimed. KindInvalid as for Erase.
	PersonalData(ctx context.Context, m MerchantID, person Identity, withClaimed bool, use func(*PersonalRecord) error) (claimed int, err error)
}
