package write

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"

	"mtagd/store"
	"mtagd/store/pgtest"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/count"
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

// newWriter returns a writer to a new database, whose queue nobody empties.
func newWriter(t *testing.T, options string) *Writer {
	t.Helper()
	db, err := open(pgtest.Database(t) + options)
	testenv.Check(t, err)
	t.Cleanup(db.Close)
	w, err := New(t.Context(), db, count.New(db), Options{})
	testenv.Check(t, err)
	return w
}

// visit returns a flush with one event.
func visit(merchant uuid.UUID) *flush {
	f := newFlush(uuid.New(), nil)
	f.addMark(&store.Mark{Merchant: store.MerchantID(merchant.String()), Tag: "tag", Name: "PageView", Time: time.Now(), Raw: []byte("{}"),
		Identity: store.Identity{MUID: "anna"}})
	return f
}

// The operator may have another default isolation level. With it, flushes that write the same rows would fail.
func TestAFlushHasItsOwnIsolation(t *testing.T) {
	w := newWriter(t, "&default_transaction_isolation=serializable")
	session, err := w.askDatabase(t.Context(), visit(uuid.New()))
	testenv.Check(t, err)
	defer session.Release()
	var level string
	if err := session.QueryRow(t.Context(), "SHOW transaction_isolation").Scan(&level); err != nil || level != "read committed" {
		t.Errorf("a flush is %s, %v", level, err)
	}
}

// Only failures of the database that go on make a node not ready, and only while there are new ones.
func TestWhenFlushesFail(t *testing.T) {
	full, invalid := &pgconn.PgError{Code: "53100"}, &pgconn.PgError{Code: "22021"}
	w, start, last := &Writer{}, time.Now(), time.Duration(0)
	for i, c := range []struct {
		at    time.Duration
		noted bool
		err   error
		fails bool
	}{
		{0, true, full, false},
		{store.MaxDirectoryAge, false, nil, false}, // one failure says nothing, however long ago
		{0, true, nil, false},
		{0, true, full, false},
		{store.MaxDirectoryAge, true, fmt.Errorf("a flush: %w", context.DeadlineExceeded), false},
		{time.Millisecond, true, &pgconn.PgError{Code: LockNotAvailable}, true},
		{tryAgainAfter, false, nil, true},
		{time.Millisecond, false, nil, false}, // a load balancer may send events again
		{0, true, invalid, false},
		{0, true, context.Canceled, false},
		{0, true, &pgconn.PgError{Code: "57P01"}, false}, // the connection has ended, as in a fail-over
		{0, true, io.ErrUnexpectedEOF, false},
		{0, true, full, false},
		{store.MaxDirectoryAge + time.Millisecond, true, full, true},
		{0, true, invalid, true},
		{0, true, nil, false},
		{time.Second, true, full, false},
		{time.Hour, true, invalid, false},
	} {
		last += c.at
		now := start.Add(last)
		if c.noted {
			w.noteFlush(c.err, now)
		}
		if err := w.failing(now); (err != nil) != c.fails {
			t.Errorf("step %d, after %v: %v", i, last, err)
		}
	}
}

// When the answer to a COMMIT is lost, the database says whether the flush was committed. If not, it never is.
func TestALostAnswerIsSettled(t *testing.T) {
	w, merchant := newWriter(t, ""), uuid.New()
	lost := context.DeadlineExceeded

	committed := visit(merchant)
	testenv.Check(t, w.writeFlush(t.Context(), committed))
	if err := w.settle(committed, lost); err != nil {
		t.Errorf("a flush that was committed: %v", err)
	}

	never := visit(merchant)
	session, err := w.db.Pool.Acquire(t.Context())
	testenv.Check(t, err)
	defer session.Release()
	testenv.Check(t, never.sendQuestions(t.Context(), session.Conn()))
	never.decide()
	if err := w.settle(never, lost); store.KindOf(err) != store.KindUnavailable {
		t.Errorf("a flush that was not committed: %v, want KindUnavailable", err)
	}
	if err := never.sendWrites(t.Context(), session.Conn()); err == nil {
		t.Error("a flush is committed after it was found not to be")
	}
	var events, flushes int
	if err := w.db.Pool.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM event), (SELECT count(*) FROM flush)").Scan(&events, &flushes); err != nil || events != 1 || flushes != 2 {
		t.Errorf("%d events and %d flushes, %v, want 1 and 2", events, flushes, err)
	}
}
