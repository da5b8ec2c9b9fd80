package store

import (
	"slices"
	"time"
)

// Secret is what is stored of a merchant's secret: a hash, never the secret itself. With it a backend shows that it may
// link identifiers to muids, and resolve them.
type Secret struct {
	ID        SecretID  `json:"secretId"`
	Hash      []byte    `json:"secretSha256"` // SHA-256
	CreatedAt time.Time `json:"createdAt"`
}

// SecretText is the text of a secret, which the partner sees once. It begins with SecretPrefix; credential.go has the rest
// of its form. Never log it.
type SecretText string

// SecretPrefix is how the text of a secret begins.
const SecretPrefix = "mts_"

// NewSecret makes a secret.
func NewSecret(now time.Time) (Secret, SecretText) {
	id, hash, text := newCredential(SecretPrefix)
	return Secret{ID: SecretID(id), Hash: hash, CreatedAt: now}, SecretText(text)
}

// matchesOne reports whether the text is that of one of these secrets.
func (t SecretText) matchesOne(secrets []Secret) bool {
	id, secret, err := parseCredential(SecretPrefix, string(t), "a merchant's secret")
	if err != nil {
		return false
	}
	i := slices.IndexFunc(secrets, func(s Secret) bool { return s.ID == SecretID(id) })
	return i >= 0 && hashes(secret, secrets[i].Hash)
}
