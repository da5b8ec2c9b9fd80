package postgres

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"mtagd/store"
	"mtagd/store/pgtest"
	"mtagd/store/storetest"
)

func TestConformance(t *testing.T) { storetest.Run(t, newStore) }

// newStore returns stores in empty databases. Kill cuts all connections: a node has nothing else that a kill could take.
func newStore(t *testing.T) storetest.Store {
	url := pgtest.Database(t)
	return storeIn(url, url)
}

// storeIn is a database whose engines connect to an address of it, which may lead through a pooler. Beside other tests a flush may take long.
func storeIn(url, address string) storetest.Store {
	return storetest.Store{
		Open: func(t *testing.T, now func() time.Time) store.Engine {
			t.Helper()
			e, err := openURL(address, Options{Log: quiet, Now: now, audit: storetest.AuditLimits, flushTimeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			return e
		},
		Kill: func(t *testing.T) {
			t.Helper()
			pgtest.Disconnect(t, url)
		},
		Break: func(t *testing.T, merchants ...store.MerchantID) func() {
			t.Helper()
			exec := func(sql string) {
				t.Helper()
				db, err := pgxpool.New(context.Background(), url)
				if err != nil {
					t.Fatal(err)
				}
				defer db.Close()
				if _, err := db.Exec(context.Background(), sql); err != nil {
					t.Fatal(err)
				}
			}
			var ids []string
			for _, m := range merchants {
				ids = append(ids, "''"+string(m)+"''")
			}
			exec(`CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
				'BEGIN IF OLD.merchant IN (` + strings.Join(ids, ", ") + `) THEN RAISE ''a bad block''; END IF; RETURN OLD; END';
				CREATE TRIGGER refuse BEFORE DELETE ON event FOR EACH ROW EXECUTE FUNCTION refuse()`)
			mend := func() { exec("DROP TRIGGER IF EXISTS refuse ON event") }
			t.Cleanup(mend) // other tests get the database next
			return mend
		},
	}
}
