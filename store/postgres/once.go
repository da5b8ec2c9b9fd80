package postgres

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/google/uuid"

	"mtagd/store"
)

// reply is what a call with an idempotency key has created.
type reply struct {
	At time.Time `json:"at"`

	// A merchant, as it was created.
	Merchant  store.MerchantID `json:"merchantId,omitempty"`
	Name      string           `json:"name,omitempty"`
	Domain    string           `json:"domain,omitempty"`
	Secret    bool             `json:"identityRequiresSecret,omitempty"`
	CreatedAt time.Time        `json:"createdAt,omitzero"`

	IssuedKey store.KeyID `json:"issuedKeyId,omitempty"`
}

// reply returns what the call with the same idempotency key has created; false when there was none.
func (c *change) reply(partner store.PartnerID, once string) (r reply, before bool, err error) {
	if once == "" {
		return r, false, nil
	}
	key := sha256.Sum256([]byte(once))
	r, err = find[reply](c.ctx, c.tx, "reply", "SELECT record FROM reply WHERE partner = $1 AND key = $2", string(partner), key[:])
	if store.KindOf(err) == store.KindNotFound {
		return r, false, nil
	}
	return r, err == nil && c.now.Sub(r.At) < store.OnceWindow, err
}

// putReply notes what a call with an idempotency key creates; without one it does nothing. It deletes the oldest replies when the
// partner has too many.
func (c *change) putReply(partner store.PartnerID, r reply, once string) {
	if once == "" {
		return
	}
	r.At = c.now
	key := sha256.Sum256([]byte(once))
	c.exec(`DELETE FROM reply WHERE partner = $1 AND key IN (SELECT key FROM reply WHERE partner = $1 ORDER BY at DESC OFFSET $2)`,
		string(partner), store.MaxOnce-1)
	c.exec(`INSERT INTO reply (partner, key, record) VALUES ($1, $2, $3)
		ON CONFLICT (partner, key) DO UPDATE SET at = excluded.at, record = excluded.record`, string(partner), key[:], c.encode(r))
}

// deleteOld deletes control data that is not needed any more. It uses the server's clock: what is deleted is older than any
// difference between clocks.
func (e *engine) deleteOld(ctx context.Context) error {
	if _, err := e.pool.Exec(ctx, "DELETE FROM reply WHERE at < now() - $1 * interval '1 second'", int64(2*store.OnceWindow/time.Second)); err != nil {
		return err
	}
	if _, err := e.pool.Exec(ctx, "DELETE FROM change WHERE at < now() - $1 * interval '1 second' AND seq < (SELECT max(seq) FROM change)",
		int64(keepChanges/time.Second)); err != nil {
		return err
	}
	if _, err := e.pool.Exec(ctx, "DELETE FROM session WHERE at < now() - $1 * interval '1 second'", int64(store.SessionLife/time.Second)); err != nil {
		return err
	}
	// Documents that were deleted, which all nodes know by now, and those that a node has written while their merchant was deleted.
	if _, err := e.pool.Exec(ctx, `DELETE FROM document WHERE content IS NULL AND at < now() - interval '1 day'
		OR merchant <> $1 AND merchant NOT IN (SELECT id FROM merchant) AND changed = 0`, uuid.Nil); err != nil {
		return err
	}
	// Messages and leases of nodes that have died.
	if _, err := e.pool.Exec(ctx, "DELETE FROM message WHERE at < now() - interval '1 minute'"); err != nil {
		return err
	}
	if _, err := e.pool.Exec(ctx, "DELETE FROM lease WHERE expires < now() - interval '1 day'"); err != nil {
		return err
	}
	return e.dropAudit(ctx)
}
