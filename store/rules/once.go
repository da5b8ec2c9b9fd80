package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"time"

	"mtagd/store"
)

// reply is what a call with an idempotency key has created.
type reply struct {
	Partner store.PartnerID `json:"partnerId"`
	Key     string          `json:"key"` // SHA-256 of the idempotency key
	At      time.Time       `json:"at"`

	// A merchant, as it was created.
	Merchant  store.MerchantID `json:"merchantId,omitempty"`
	Name      string           `json:"name,omitempty"`
	Domain    string           `json:"domain,omitempty"`
	Secret    bool             `json:"identityRequiresSecret,omitempty"`
	CreatedAt time.Time        `json:"createdAt,omitzero"`

	IssuedKey store.KeyID `json:"issuedKeyId,omitempty"`
}

func replyKey(partner store.PartnerID, hashed string) string { return string(partner) + "/" + hashed }

func hashOnce(once string) string {
	sum := sha256.Sum256([]byte(once))
	return hex.EncodeToString(sum[:])
}

// reply returns what the call with the same idempotency key has created; false when there was none.
func (s *State) reply(partner store.PartnerID, once string, now time.Time) (r reply, before bool, err error) {
	if once == "" {
		return r, false, nil
	}
	r, err = find(s.replies, replyKey(partner, hashOnce(once)), "reply")
	if store.KindOf(err) == store.KindNotFound {
		return r, false, nil
	}
	return r, err == nil && now.Sub(r.At) < store.OnceWindow, err
}

// putReply notes what a call with an idempotency key creates; without one it does nothing. It drops the oldest reply when
// the partner has too many.
func (c *change) putReply(r reply, once string) {
	if once == "" {
		return
	}
	r.Key, r.At = hashOnce(once), c.now
	key := replyKey(r.Partner, r.Key)
	if old := c.d.state.repliesOf[r.Partner]; len(old) >= store.MaxOnce && old[0] != key {
		c.delete(Replies, old[0])
	}
	c.put(Replies, key, r)
}

// dropReplies deletes replies that are too old.
func (c *change) dropReplies() {
	n := 0
	for _, keys := range c.d.state.repliesOf {
		for _, key := range keys {
			if n == tidied || c.now.Sub(c.d.state.replies[key].At) < store.OnceWindow {
				break
			}
			c.delete(Replies, key)
			n++
		}
	}
}
