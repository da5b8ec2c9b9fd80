package store

import "time"

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

// APIKey is the text of a key, which the partner sees once. It begins with "mtp_"; credential.go has the rest of its form.
// An APIKey contains a secret: never log it.
type APIKey string

const apiKeyPrefix = "mtp_"

// NewKey makes a key for a partner. It expires after expiresIn; 0 means never.
func NewKey(partner PartnerID, now time.Time, expiresIn time.Duration) (Key, APIKey) {
	id, hash, text := newCredential(apiKeyPrefix)
	k := Key{ID: KeyID(id), Partner: partner, SecretHash: hash, CreatedAt: now}
	if expiresIn > 0 {
		t := now.Add(expiresIn)
		k.ExpiresAt = &t
	}
	return k, APIKey(text)
}

// ID returns the key id in the text, or an error when the text is malformed. It does not check the secret; Matches does.
func (a APIKey) ID() (KeyID, error) {
	id, _, err := a.parse()
	return KeyID(id), err
}

// Matches reports, in constant time, whether the secret in the text is that of k.
func (a APIKey) Matches(k Key) bool {
	_, secret, err := a.parse()
	return err == nil && hashes(secret, k.SecretHash)
}

func (a APIKey) parse() (id, secret string, err error) {
	return parseCredential(apiKeyPrefix, string(a), "an API key")
}
