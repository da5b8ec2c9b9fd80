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

// Key is what is stored of an API key: a hash of the secret, never the secret itself.
type Key struct {
	ID         KeyID      `json:"keyId"`
	Partner    PartnerID  `json:"partnerId"`
	SecretHash []byte     `json:"secretSha256"` // SHA-256
	CreatedAt  time.Time  `json:"createdAt"`
	ExpiresAt  *time.Time `json:"expiresAt"` // nil: the key does not expire
	RevokedAt  *time.Time `json:"revokedAt"` // nil: the key is not revoked
}

// Valid reports whether the key is neither expired nor revoked at the time now.
func (k Key) Valid(now time.Time) bool {
	return k.RevokedAt == nil && (k.ExpiresAt == nil || now.Before(*k.ExpiresAt))
}

// APIKey is the text of a key, which the partner sees once:
//
//	"mtp_" + key id (12) + secret (32) + checksum (7)
//
// The parts are in lower-case base32, so that a double click selects the whole key. The checksum detects typing errors
// without a look-up. An APIKey contains a secret: never log it.
type APIKey string

const (
	apiKeyPrefix = "mtp_"
	keyIDLen     = 12 // 60 bits
	secretLen    = 32 // 160 bits
	checksumLen  = 7  // CRC-32 of key id and secret
	apiKeyLen    = len(apiKeyPrefix) + keyIDLen + secretLen + checksumLen
)

var keyEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewKey makes a key for a partner. It expires after expiresIn; 0 means never.
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

// ID returns the key id in the text, or an error when the text is malformed. It does not check the secret; Matches does.
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

// Matches reports, in constant time, whether the secret in the text is that of k.
func (a APIKey) Matches(k Key) bool {
	if len(a) != apiKeyLen {
		return false
	}
	start := len(apiKeyPrefix) + keyIDLen
	sum := sha256.Sum256([]byte(a[start : start+secretLen]))
	return subtle.ConstantTimeCompare(sum[:], k.SecretHash) == 1
}
