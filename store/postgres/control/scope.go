package control

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/rules"
)

// All events are from earliest on, and before latest (µs since 1970): event_time has a year from 0 to 9999.
const (
	Earliest = -62_167_219_200_000_000
	Latest   = 253_402_300_800_000_000
)

// Scope says which events of a merchant answers may have.
type Scope struct {
	From    int64 // event_time (µs since 1970): older ones are past the retention
	Removed bool  // the merchant was deleted
}

// Scopes returns the scopes of merchants, in their order.
func (c *Control) Scopes(ctx context.Context, tx pgx.Tx, merchants ...uuid.UUID) (scopes []Scope, err error) {
	now, err := c.Time(ctx, tx)
	if err != nil {
		return nil, err
	}
	for _, m := range merchants {
		id := store.MerchantID(m.String())
		scopes = append(scopes, Scope{From: max(rules.RetainedFrom(c.RetentionOf(id), now), Earliest), Removed: c.IsRemoved(id)})
	}
	return scopes, nil
}
