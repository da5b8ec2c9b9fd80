package postgres

import (
	"context"
	"mtagd/store"
	"mtagd/store/rules"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// scope is which events of a merchant are in answers.
type scope struct {
	from    int64 // event_time (µs since 1970): older ones are past the retention
	removed bool  // the merchant was deleted
}

// scopes returns the scopes of merchants, in their order, and the time now.
func (e *engine) scopes(ctx context.Context, tx pgx.Tx, merchants ...uuid.UUID) (scopes []scope, now time.Time, err error) {
	now, err = e.timeOf(ctx, tx)
	if err != nil {
		return nil, now, err
	}
	for _, m := range merchants {
		id := store.MerchantID(m.String())
		scopes = append(scopes, scope{from: max(rules.RetainedFrom(e.RetentionOf(id), now), earliest), removed: e.IsRemoved(id)})
	}
	return scopes, now, nil
}
