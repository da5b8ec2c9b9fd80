package postgres

import (
	"testing"

	"mtagd/store/pgtest"
	"mtagd/store/postgres/conn"
	"mtagd/store/testenv"

	"github.com/jackc/pgx/v5"
)

func TestPoolersAreRecognized(t *testing.T) {
	url := pgtest.Database(t)
	through := pgtest.Pooler(t, "transaction")
	for address, want := range map[string]bool{url: false, through(url): true} {
		db, err := conn.Open(t.Context(), address, conn.Options{})
		testenv.Check(t, err)
		defer db.Close()
		if pooled := db.Pool.Config().ConnConfig.DefaultQueryExecMode == pgx.QueryExecModeCacheDescribe; pooled != want {
			t.Errorf("%s: %v", address, pooled)
		}
	}
}
