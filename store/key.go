package store

import "time"

// Key is what is stored of an API key: a hash of the secret, never the secret itself.
type Key struct {
	ID         KeyID      `json:"keyId"`
	Partner    PartnerID  `json:"partnerId"`
	SecretHash []byte     `json:"secretSha256"` // SHA-256
	Name       string     `json:"name,omitempty"`
	Scope      Scope      `json:"scope,omitempty"`
	Personal   bool       `json:"personalData,omitempty"` // with ReadOnly: it may ask what is held of a person
	CreatedAt  time.Time  `json:"createdAt"`
	ExpiresAt  *time.Time `json:"expiresAt"` // nil: the key does not expire
	RevokedAt  *time.Time `json:"revokedAt"` // nil: the key is not revoked

	// LastUsedAt is when the key last authenticated a request; zero: never. It may be too early by KeyUseDelay, and after a
	// kill uses of that long before it may be missing.
	LastUsedAt time.Time `json:"-"`
}

// KeyUseDelay bounds how long it takes until the use of a key is known.
const KeyUseDelay = time.Minute

// Scope is what a key may do.
type Scope string

// The scopes.
const (
	Full     Scope = ""     // everything that its partner may do
	ReadOnly Scope = "read" // only requests that change nothing
)

// ParseScope reads a scope as people write it: "full" or "read".
func ParseScope(field, s string) (Scope, error) {
	switch s {
	case "full":
		return Full, nil
	case string(ReadOnly):
		return ReadOnly, nil
	}
	return "", Invalid(field, "must be full or read")
}

// CheckPersonal returns an error when only keys of scope ReadOnly need what is asked for: to read what is held of a person.
func (o KeyOptions) CheckPersonal(field string) error {
	if o.Personal && o.Scope == Full {
		return Invalid(field, "is for the scope read only: a full key may ask what is held of a person anyway")
	}
	return nil
}

// String returns the scope as ParseScope reads it.
func (s Scope) String() string {
	if s == Full {
		return "full"
	}
	return string(s)
}

// KeyOptions describe a new key.
type KeyOptions struct {
	Name      string // for people; may be empty
	Scope     Scope
	Personal  bool          // as Key.Personal
	ExpiresIn time.Duration // 0: the key never expires
	Once      string        // idempotency key of the request; empty: there is none
}

// MaxKeys is how many valid keys a partner may have. An engine also keeps up to MaxKeys that have expired or were revoked.
const MaxKeys = 100

// Valid reports whether the key is neither expired nor revoked at the time now.
func (k Key) Valid(now time.Time) bool {
	return k.RevokedAt == nil && (k.ExpiresAt == nil || now.Before(*k.ExpiresAt))
}

// APIKey is the text of a key, which the partner sees once. It begins with "mtp_"; credential.go has the rest of its form.
// An APIKey contains a secret: never log it.
type APIKey string

const apiKeyPrefix = "mtp_"

// NewKey makes a key for a partner.
func NewKey(partner PartnerID, now time.Time, opt KeyOptions) (Key, APIKey) {
	id, hash, text := newCredential(apiKeyPrefix)
	k := Key{ID: KeyID(id), Partner: partner, SecretHash: hash, Name: opt.Name, Scope: opt.Scope, Personal: opt.Personal, CreatedAt: now}
	if opt.ExpiresIn > 0 {
		t := now.Add(opt.ExpiresIn)
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
