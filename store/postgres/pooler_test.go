package postgres

import (
	"testing"

	"mtagd/store/pgtest"
	"mtagd/store/postgres/conn"

	"github.com/jackc/pgx/v5"
)

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
