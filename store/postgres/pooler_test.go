package postgres

import (
	"testing"

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
			storetest.Run(t, func(t *testing.T) storetest.Store {
				url := pgtest.Database(t)
				return storeIn(url, through(url))
			}, "Marks")
		})
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
