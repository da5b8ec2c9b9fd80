package store

import (
	"crypto/rand"
	"encoding/base64"
	"strings"

	"github.com/google/uuid"
)

// The ids of the service. All are opaque and printable, and are compared byte by byte.
type (
	PartnerID  string // UUID v4
	MerchantID string // UUID v4, lower case
	TagID      string // type prefix and 120 random bits, URL-safe, case-sensitive
	KeyID      string // the part of an API key that is not secret
	SecretID   string // the part of a merchant's secret that is not secret
	EventID    string // 20 characters; sorts in the order of receipt
)

// NewPartnerID returns a random id.
func NewPartnerID() PartnerID { return PartnerID(uuid.NewString()) }

// NewMerchantID returns a random id (spec, Merchant: "UUID v4 format").
func NewMerchantID() MerchantID { return MerchantID(uuid.NewString()) }

// NewTagID returns a random id with the prefix of the tag's type.
func NewTagID(t TagType) TagID {
	prefix := map[TagType]string{ClientSide: "cs_", ServerSide: "ss_", Preverified: "pv_"}[t]
	var b [15]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the process instead
	return TagID(prefix + base64.RawURLEncoding.EncodeToString(b[:]))
}

// IsUUID reports whether s is a UUID in its 36-character form, of any version.
func IsUUID(s string) bool {
	_, err := uuid.Parse(s)
	return err == nil && len(s) == 36
}

// IsUUIDv4 reports whether s is a version 4 UUID in its 36-character form.
func IsUUIDv4(s string) bool {
	u, err := uuid.Parse(s)
	return err == nil && len(s) == 36 && u.Version() == 4 && u.Variant() == uuid.RFC4122
}

// FoldMerchantID returns a client's merchant id in lower case. It does not check the format: an id in
// another format is the id of no merchant.
func FoldMerchantID(s string) MerchantID { return MerchantID(strings.ToLower(s)) }
