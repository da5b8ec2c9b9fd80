package postgres

import (
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/postgres/pgtest"
	"mtagd/store/storetest"
)

func TestConformance(t *testing.T) { storetest.Run(t, newStore) }

// newStore returns stores in empty databases. Kill cuts all connections: a node has nothing else that a kill could take.
func newStore(t *testing.T) storetest.Store { return storeIn(pgtest.Database(t)) }

func storeIn(url string) storetest.Store {
	return storetest.Store{
		Open: func(t *testing.T, now func() time.Time) store.Engine {
			t.Helper()
			e, err := openURL(url, Options{Log: quiet, Now: now, audit: storetest.AuditLimits})
			if err != nil {
				t.Fatal(err)
			}
			return e
		},
		Kill: func(t *testing.T) {
			t.Helper()
			pgtest.Disconnect(t, url)
		},
	}
}
