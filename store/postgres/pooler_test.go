package postgres

import (
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/pgtest"
	"mtagd/store/postgres/conn"
	"mtagd/store/storetest"

	"github.com/jackc/pgx/v5"
)

// Behind a pooler, each transaction may run on another connection to the server, and few connections serve all clients.
func TestBehindAPooler(t *testing.T) {
	for _, mode := range []string{"transaction", "session"} {
		t.Run(mode, func(t *testing.T) {
			through := pgtest.Pooler(t, mode)
			storetest.Run(t, func(t *testing.T) storetest.Store { return newStoreThrough(t, through) }, "Marks")
		})
	}
}

// newStoreThrough is newStore with connections that lead through a pooler.
func newStoreThrough(t *testing.T, through func(address string) string) storetest.Store {
	url := pgtest.Database(t)
	return storetest.Store{
		Open: func(t *testing.T, now func() time.Time) store.Engine {
			t.Helper()
			e, err := openURL(through(url), Options{Log: quiet, Now: now})
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

func TestPoolersAreRecognized(t *testing.T) {
	url := pgtest.Database(t)
	through := pgtest.Pooler(t, "transaction")
	for address, want := range map[string]bool{url: false, through(url): true} {
		config, err := conn.Configure(t.Context(), address)
		if err != nil {
			t.Fatal(err)
		}
		if pooled := config.ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheDescribe; pooled != want {
			t.Errorf("%s: %v", address, pooled)
		}
	}
}
