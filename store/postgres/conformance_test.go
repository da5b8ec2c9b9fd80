package postgres

import (
	"context"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/postgres/pgtest"
	"mtagd/store/storetest"
)

type pe interface{ store.Persons }
type partial struct {
	*engine
	pe
}

func (partial) Verify(context.Context, store.Verification) (store.Verified, error) {
	return store.Verified{}, nil
}

func TestConformance(t *testing.T) { storetest.Run(t, newStore) }

// newStore returns stores in new databases.
func newStore(t *testing.T) storetest.Store {
	url := pgtest.Database(t)
	return storetest.Store{
		Open: func(t *testing.T, now func() time.Time) store.Engine {
			t.Helper()
			e, err := openURL(url, Options{Log: quiet, Now: now})
			if err != nil {
				t.Fatal(err)
			}
			return partial{engine: e}
		},
		Kill: func(t *testing.T) { pgtest.Disconnect(t, url) },
	}
}
