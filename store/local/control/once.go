package control

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
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
func (s *state) reply(partner store.PartnerID, once string, now time.Time) (r reply, before bool, err error) {
	if once == "" {
		return r, false, nil
	}
	r, err = find(s, s.replies, replyKey(partner, hashOnce(once)), inReplies, "reply")
	if store.KindOf(err) == store.KindNotFound {
		return r, false, nil
	}
	return r, err == nil && now.Sub(r.At) < store.OnceWindow, err
}

// putReply notes what a call with an idempotency key creates; without one it does nothing. It drops the oldest reply when the
// partner has too many.
func (c *change) putReply(r reply, once string, now time.Time) error {
	if once == "" {
		return nil
	}
	r.Key, r.At = hashOnce(once), now
	key := replyKey(r.Partner, r.Key)
	if old := c.d.state.repliesOf[r.Partner]; len(old) >= store.MaxOnce && old[0] != key {
		c.deleteReply(old[0])
	}
	return put(c, inReplies, key, r, func(s *state) {
		s.removeReply(r.Partner, key)
		s.replies[key] = r
		s.repliesOf[r.Partner] = append(s.repliesOf[r.Partner], key)
	})
}

func (s *state) removeReply(partner store.PartnerID, key string) {
	if _, known := s.replies[key]; known {
		delete(s.replies, key)
		s.repliesOf[partner] = slices.DeleteFunc(s.repliesOf[partner], func(k string) bool { return k == key })
	}
}

func (c *change) deleteReply(key string) {
	partner := c.d.state.replies[key].Partner
	c.delete(inReplies, key, func(s *state) { s.removeReply(partner, key) })
}

// maxDropped bounds how many replies one transaction drops.
const maxDropped = 1000

// dropReplies deletes replies that are too old.
func (c *change) dropReplies(now time.Time) {
	n := 0
	for _, keys := range c.d.state.repliesOf {
		for _, key := range keys {
			if n == maxDropped || now.Sub(c.d.state.replies[key].At) < store.OnceWindow {
				break
			}
			c.deleteReply(key)
			n++
		}
	}
}
