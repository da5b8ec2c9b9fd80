package store

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"time"
)

// Partner owns merchants and is who the partner API authenticates.
type Partner struct {
	ID        PartnerID `json:"partnerId"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"createdAt"`

	// TrackingDomain serves the partner's preverified tags. Empty while preverified access is not
	// enabled.
	TrackingDomain string `json:"preverifiedDomain"`
}

// PreverifiedEnabled reports whether the partner may generate preverified tags.
func (p Partner) PreverifiedEnabled() bool { return p.TrackingDomain != "" }

// Key is an API key as it is kept: the secret itself is not, only its SHA-256.
type Key struct {
	ID         KeyID      `json:"keyId"`
	Partner    PartnerID  `json:"partnerId"`
	SecretHash []byte     `json:"secretSha256"` // SHA-256
	CreatedAt  time.Time  `json:"createdAt"`
	ExpiresAt  *time.Time `json:"expiresAt"` // nil: never
	RevokedAt  *time.Time `json:"revokedAt"` // nil: not revoked
}

// Valid reports whether the key may be used at the time now.
func (k Key) Valid(now time.Time) bool {
	return k.RevokedAt == nil && (k.ExpiresAt == nil || now.Before(*k.ExpiresAt))
}

// APIKey is the textual form of a key, shown to its owner once:
//
//	"mtp_" + key id (12) + secret (32) + checksum (7)
//
// all in lower-case base32, so that it is one word and a typing error is told from a wrong key
// without a look-up. It holds a secret: never log it.
type APIKey string

const (
	apiKeyPrefix = "mtp_"
	keyIDLen     = 12 // 60 bits
	secretLen    = 32 // 160 bits
	checksumLen  = 7  // CRC-32
	apiKeyLen    = len(apiKeyPrefix) + keyIDLen + secretLen + checksumLen
)

var keyEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewKey makes a key for a partner. expiresIn is its lifetime, 0 for ever.
func NewKey(partner PartnerID, now time.Time, expiresIn time.Duration) (Key, APIKey) {
	random := strings.ToLower(rand.Text() + rand.Text()) // 26 base32 characters each
	id, secret := random[:keyIDLen], random[keyIDLen:keyIDLen+secretLen]
	sum := sha256.Sum256([]byte(secret))
	k := Key{ID: KeyID(id), Partner: partner, SecretHash: sum[:], CreatedAt: now}
	if expiresIn > 0 {
		t := now.Add(expiresIn)
		k.ExpiresAt = &t
	}
	return k, APIKey(apiKeyPrefix + id + secret + checksum(id+secret))
}

func checksum(s string) string {
	return keyEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(s))))
}

// ID returns the id of the key that this text stands for, or an error when the text is malformed.
// It says nothing about whether the secret is right: Matches does.
func (a APIKey) ID() (KeyID, error) {
	s := string(a)
	if len(s) != apiKeyLen || !strings.HasPrefix(s, apiKeyPrefix) {
		return "", fmt.Errorf("store: not an API key")
	}
	body := s[len(apiKeyPrefix) : apiKeyLen-checksumLen]
	if checksum(body) != s[apiKeyLen-checksumLen:] {
		return "", fmt.Errorf("store: API key with a wrong checksum")
	}
	return KeyID(body[:keyIDLen]), nil
}

// Matches reports, in constant time, whether the text carries the key's secret.
func (a APIKey) Matches(k Key) bool {
	if len(a) != apiKeyLen {
		return false
	}
	start := len(apiKeyPrefix) + keyIDLen
	sum := sha256.Sum256([]byte(a[start : start+secretLen]))
	return subtle.ConstantTimeCompare(sum[:], k.SecretHash) == 1
}
