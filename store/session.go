package store

import (
	"iter"
	"time"
)

// Session is what somebody has who is signed in to the web console. It stands for the API key that it was begun with,
// or for a partner or the operators if a link has begun it. It ends with its key or its partner.
//
// A Session with IsLink is a link: an operator makes it, and it begins one session.
type Session struct {
	ID         SessionID `json:"sessionId"`
	SecretHash []byte    `json:"secretSha256"` // SHA-256
	IsLink     bool      `json:"isLink,omitempty"`
	Partner    PartnerID `json:"partnerId,omitempty"` // empty: an operator's
	Key        KeyID     `json:"keyId,omitempty"`     // that it was begun with; empty for links and what they begin
	Link       SessionID `json:"linkId,omitempty"`    // that has begun it
	CreatedAt  time.Time `json:"createdAt"`
	ExpiresAt  time.Time `json:"expiresAt"`
	SeenAt     time.Time `json:"seenAt,omitzero"` // when it was last used, as stored: up to SessionSeenDelay too early
}

// SessionID is the part of a session's text that is not secret.
type SessionID string

// SessionText is the text of a session, which is in a cookie, or of a link. It contains a secret: never log it.
type SessionText string

const (
	SessionLife = 12 * time.Hour   // a session ends after that, if nothing ends it before
	LinkLife    = 15 * time.Minute // a link can be used for so long

	// SessionSeenDelay is how often an engine stores that a session is used, so that few requests cause a write.
	SessionSeenDelay = time.Hour

	// MaxSessions is how many sessions may have been begun with one key, or by links for one partner or for operators;
	// and how many links there may be for one of these. The oldest one ends for a new one.
	MaxSessions = 50
)

const (
	sessionPrefix = "mtc_"
	linkPrefix    = "mtl_"
)

// NewLink makes a link for a partner, or for operators when the id is empty.
func NewLink(partner PartnerID, now time.Time) (Session, SessionText) {
	id, hash, text := newCredential(linkPrefix)
	return Session{
		ID: SessionID(id), SecretHash: hash, IsLink: true, Partner: partner, CreatedAt: now, ExpiresAt: now.Add(LinkLife),
	}, SessionText(text)
}

// NewSession makes a session that a key begins. It ends when the key expires.
func NewSession(k Key, now time.Time) (Session, SessionText) {
	s, text := newSession(k.Partner, now)
	s.Key = k.ID
	if k.ExpiresAt != nil && k.ExpiresAt.Before(s.ExpiresAt) {
		s.ExpiresAt = *k.ExpiresAt
	}
	return s, text
}

// Begin makes the session that a link begins.
func (s Session) Begin(now time.Time) (Session, SessionText) {
	begun, text := newSession(s.Partner, now)
	begun.Link = s.ID
	return begun, text
}

func newSession(partner PartnerID, now time.Time) (Session, SessionText) {
	id, hash, text := newCredential(sessionPrefix)
	return Session{ID: SessionID(id), SecretHash: hash, Partner: partner, CreatedAt: now, ExpiresAt: now.Add(SessionLife)}, SessionText(text)
}

// maxAhead is how far the clock may have been ahead when a session began. Otherwise a session would live on when the
// clock is corrected.
const maxAhead = 5 * time.Minute

// Valid reports whether the time of a session or a link is not over.
func (s Session) Valid(now time.Time) bool {
	return now.Before(s.ExpiresAt) && now.After(s.CreatedAt.Add(-maxAhead))
}

// Opens reports whether the text is that of a link that can still be used.
func (t SessionText) Opens(link Session, now time.Time) bool {
	return link.IsLink && t.Matches(link) && link.Valid(now)
}

// storedSeen returns when a session was last used, as far as that is stored.
func (s Session) storedSeen() time.Time {
	if s.SeenAt.After(s.CreatedAt) {
		return s.SeenAt
	}
	return s.CreatedAt
}

// IsOperators reports whether a session, or the one that a link begins, is an operator's.
func (s Session) IsOperators() bool { return s.Partner == "" }

// IsLike reports whether two sessions count together for MaxSessions.
func (s Session) IsLike(other Session) bool {
	return s.IsLink == other.IsLink && s.Partner == other.Partner && s.Key == other.Key
}

// Actor is who makes the changes of a session, or uses a link.
func (s Session) Actor() Actor {
	switch {
	case s.Key != "":
		return Actor{Kind: ByKey, Name: string(s.Key)}
	case s.IsLink:
		return Actor{Kind: ByLink, Name: string(s.ID)}
	default:
		return Actor{Kind: ByLink, Name: string(s.Link)}
	}
}

// ID returns the id in the text of a session, or of a link; an error when the text is malformed. It does not check the
// secret; Matches does.
func (t SessionText) ID() (SessionID, error) {
	id, _, err := parseCredential(sessionPrefix, string(t), "a session")
	if err != nil {
		id, _, err = parseCredential(linkPrefix, string(t), "a session or a link")
	}
	return SessionID(id), err
}

// Matches reports, in constant time, whether the secret in the text is that of s. The text of a link matches links only.
func (t SessionText) Matches(s Session) bool {
	prefix := sessionPrefix
	if s.IsLink {
		prefix = linkPrefix
	}
	_, secret, err := parseCredential(prefix, string(t), "a session")
	return err == nil && hashes(secret, s.SecretHash)
}

// Replaces returns the session that ends when s begins: the oldest one like s, if all has MaxSessions of these.
func (s Session) Replaces(all iter.Seq[Session]) (oldest Session, ends bool) {
	n := 0
	for other := range all {
		if !other.IsLike(s) {
			continue
		}
		if n++; n == 1 || other.CreatedAt.Before(oldest.CreatedAt) {
			oldest = other
		}
	}
	return oldest, n >= MaxSessions
}
