package storetest

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mtagd/store"
	"mtagd/store/local"
	"mtagd/store/local/faultfs"
	"mtagd/store/pgtest"
	"mtagd/store/postgres"
	"mtagd/store/postgres/schema"
	"mtagd/store/testenv"
)

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(m, func(url string) error {
		e, err := postgres.Open(context.Background(), url, postgres.Options{Log: quiet})
		if err != nil {
			return err
		}
		return e.Close()
	}))
}

var quiet = slog.New(slog.DiscardHandler)

func TestConformance(t *testing.T) {
	on := func(name string, test func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
	on("memory", func(t *testing.T) {
		run(t, newMemoryStore, "Partners", "Merchants", "Search", "Deletion", "Repeats", "Keys", "Sessions", "Tags", "Claims", "Directory", "Audit", "Documents")
	})
	on("embedded", func(t *testing.T) { run(t, embedded(local.Options{AuditLimits: auditLimits})) })
	on("postgres", func(t *testing.T) {
		pgtest.Need(t)
		run(t, onPostgreSQL(pgtest.Database, direct))
	})
	// Behind a pooler, each transaction may run on another connection to the server, and few connections serve all clients.
	for _, mode := range []string{"transaction", "session"} {
		on("pooler-"+mode, func(t *testing.T) { run(t, onPostgreSQL(pgtest.Database, pgtest.Pooler(t, mode)), "Marks") })
	}
	on("citus", func(t *testing.T) {
		c := pgtest.NewCitus(t, func(url string) error {
			_, err := schema.Distribute(context.Background(), url)
			return err
		})
		run(t, onPostgreSQL(c.Database, direct))
	})
}

// The archiver moves every few events at once, and all the time.
func TestDrillWhileEventsAreArchived(t *testing.T) {
	testenv.Drill(t)
	run(t, embedded(local.Options{ArchiveRun: 1000}), "Marks", "Identities", "Listing", "Contexts", "Durability", "Feed")
}

// Most names of the suite are then in overflow series, some of them for one tag only. That concerns only the listing.
func TestDrillListingWhereFewSeriesAreCounted(t *testing.T) {
	testenv.Drill(t)
	run(t, embedded(local.Options{MaxSeries: 3}), "Listing")
}

// embedded returns stores in empty directories. kill copies the files as they are; the next open opens the copy.
func embedded(opt local.Options) func(t *testing.T) backing {
	return func(t *testing.T) backing {
		dir := t.TempDir()
		var opened store.Engine
		var broken atomic.Pointer[[]store.MerchantID]
		broken.Store(&[]store.MerchantID{})
		return backing{
			open: func(t *testing.T, now func() time.Time) store.Engine {
				t.Helper()
				opt := opt // tests run at the same time
				opt.Log, opt.Now = quiet, now
				opt.Broken = func(m store.MerchantID) error {
					if slices.Contains(*broken.Load(), m) {
						return errors.New("a block cannot be written")
					}
					return nil
				}
				var err error
				opened, err = local.Open(dir, opt)
				testenv.Check(t, err)
				return opened
			},
			kill: func(t *testing.T) {
				t.Helper()
				// A copy takes a while: it must not see events while they move to the archive.
				defer opened.(interface{ PauseMoves() (release func()) }).PauseMoves()()
				dir = faultfs.Copied(t, dir)
			},
			fail: func(_ *testing.T, merchants ...store.MerchantID) func() {
				broken.Store(&merchants)
				return func() { broken.Store(&[]store.MerchantID{}) }
			},
		}
	}
}

func direct(url string) string { return url }

// onPostgreSQL returns stores in empty databases. Their engines connect to what through returns, such as a pooler. kill cuts
// all connections: a node has nothing else that a kill could take. Beside other tests a flush may take long.
func onPostgreSQL(database func(t testing.TB) (url string), through func(url string) string) func(t *testing.T) backing {
	return func(t *testing.T) backing {
		url := database(t)
		return backing{
			open: func(t *testing.T, now func() time.Time) store.Engine {
				t.Helper()
				e, err := postgres.Open(context.Background(), through(url), postgres.Options{Log: quiet, Now: now, AuditLimits: auditLimits, FlushTimeout: time.Minute, Patience: time.Minute})
				testenv.Check(t, err)
				return e
			},
			kill: func(t *testing.T) {
				t.Helper()
				testenv.Check(t, pgtest.EndConnections(url))
			},
			fail: func(t *testing.T, merchants ...store.MerchantID) func() {
				t.Helper()
				exec := func(sql string) {
					t.Helper()
					db, err := pgx.Connect(context.Background(), url)
					testenv.Check(t, err)
					_, err = db.Exec(context.Background(), sql)
					testenv.Check(t, errors.Join(err, db.Close(context.Background())))
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
}
