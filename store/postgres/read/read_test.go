package read

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"

	"mtagd/store"
	"mtagd/store/pgtest"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/control"
	"mtagd/store/postgres/schema"
	"mtagd/store/testenv"
)

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(m, func(url string) error {
		db, err := open(url)
		if err != nil {
			return err
		}
		defer db.Close()
		return schema.Prepare(context.Background(), db.Pool)
	}))
}

func open(url string) (*conn.DB, error) {
	return conn.Open(context.Background(), url, conn.Options{Log: slog.New(slog.DiscardHandler)})
}

func openDB(t *testing.T) *conn.DB {
	t.Helper()
	db, err := open(pgtest.Database(t))
	testenv.Check(t, err)
	t.Cleanup(db.Close)
	return db
}

func readerOf(t *testing.T, db *conn.DB) *Reader {
	t.Helper()
	c, err := control.Load(t.Context(), db, store.DefaultAuditLimits)
	testenv.Check(t, err)
	return New(db, c, 0)
}

// A feed ends with an error when another server answers than the one that it began with.
func TestAFeedReadsFromOneServer(t *testing.T) {
	r := readerOf(t, openDB(t))
	f := &feed{end: store.EndOf(1), server: 1}
	if _, err := r.readPortions(t.Context(), f); !errors.Is(err, conn.ErrReplaced) {
		t.Errorf("%v, want ErrReplaced", err)
	}
}
