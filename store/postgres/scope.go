package postgres

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/rules"
)

// All events are from earliest on, and before latest (µs since 1970): event_time has a year from 0 to 9999.
const (
	earliest = -62_167_219_200_000_000
	latest   = 253_402_300_800_000_000
)

// scope is which events of a merchant are in answers.
type scope struct {
	from    int64 // event_time (µs since 1970): older ones are past the retention
	removed bool  // the merchant was deleted
}

// scopes returns the scopes of merchants, in their order.
func (e *engine) scopes(ctx context.Context, tx pgx.Tx, merchants ...uuid.UUID) (scopes []scope, err error) {
	now, err := e.timeOf(ctx, tx)
	if err != nil {
		return nil, err
	}
	for _, m := range merchants {
		id := store.MerchantID(m.String())
		scopes = append(scopes, scope{from: max(rules.RetainedFrom(e.RetentionOf(id), now), earliest), removed: e.IsRemoved(id)})
	}
	return scopes, nil
}
