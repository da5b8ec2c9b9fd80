package write

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"mtagd/store"
	"mtagd/store/postgres/conn"
)

// The times of a flush. A commit may wait for a synchronous standby that is not there: when it takes too long, the answer is
// lost. Together they are less than what senders wait for an answer.
const (
	flushTimeout  = 5 * time.Second  // for a flush to be committed
	settleTimeout = 10 * time.Second // to find out what became of a flush whose answer was lost
)

// commitFlush writes and commits a flush, and wakes the watchers of its events. KindUnavailable: nothing was recorded.
// KindUncertain: the events may be recorded or not.
func (w *Writer) commitFlush(f *flush) error {
	began := time.Now()
	if w.db.Age() > conn.RefuseAfter {
		return conn.ErrNoAnswer // the requests have already waited for the flush before, and would wait as long again
	}
	w.flushing.Store(&began)
	defer w.flushing.Store(nil)
	ctx, cancel := context.WithTimeout(context.Background(), w.opt.FlushTimeout)
	defer cancel()
	w.metrics.Grouped(len(f.items))
	err := w.writeFlush(ctx, f)
	if err != nil || len(f.events) > 0 {
		w.noteFlush(err, time.Now())
	}
	if err != nil {
		return err
	}
	w.metrics.Committed(began, len(f.events)+len(f.changed) > 0)
	if len(f.events) > 0 {
		w.opt.Recorded(f.withEvents())
		w.counts.Note(f.deltas)
	}
	w.space.noteRecorded(f.deltas, f.linkRows)
	return nil
}

// writeFlush makes the two round trips of a flush.
func (w *Writer) writeFlush(ctx context.Context, f *flush) error {
	session, err := w.askDatabase(ctx, f)
	if err != nil {
		return unavailableFlush(err)
	}
	defer session.Release() // closes the connection if the transaction is still open
	f.decide()
	if f.needsNoCommit() {
		_, err := session.Exec(ctx, "ROLLBACK")
		return unavailableFlush(err)
	}
	if err := f.sendWrites(ctx, session.Conn()); err != nil {
		if isRefused(err) && !f.committed {
			return unavailableFlush(err)
		}
		return w.settle(f, err)
	}
	w.db.NoteConfirmed(f.seen)
	return nil
}

// failures are those of flushes that the database has refused since it last took events.
type failures struct {
	first, last time.Time
	err         error // the last one
}

// tryAgainAfter is how long after a failure a node is ready again. A load balancer may send no events to a node that is not.
// The next ones show whether the database takes them.
const tryAgainAfter = 10 * time.Second

// noteFlush notes the error of a flush, or nil for one that has written events.
func (w *Writer) noteFlush(err error, now time.Time) {
	if err == nil {
		w.failed.Store(nil)
	} else if isRefusal(err) {
		all := failures{now, now, err}
		if before := w.failed.Load(); before != nil && now.Sub(before.last) <= tryAgainAfter {
			all.first = before.first
		}
		w.failed.Store(&all)
	}
}

// isRefusal reports whether the database has refused a flush, and not because of what a sender has sent. A connection that
// fails is no refusal: Control.Ready knows of it, and knows sooner when there is one again, as after a fail-over.
func isRefusal(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if !ok {
		return errors.Is(err, context.DeadlineExceeded) // it took too long: lock_timeout does not yet count while statements are prepared
	}
	switch pgErr.Code[:2] {
	case "22", "23", "54": // values that cannot be stored: invalid, inconsistent, too large
		return false
	}
	return !conn.IsConnectionFailure(err)
}

// Ready returns why no events are accepted or written, or nil.
func (w *Writer) Ready() error { return cmp.Or(w.whyRefused(), w.failing(time.Now())) }

// failing returns why no events are written although the database answers, or nil. A single failure says nothing: a
// fail-over may make one flush take too long, but none after it begins before the database answers.
func (w *Writer) failing(now time.Time) error {
	f := w.failed.Load()
	if f == nil || f.last.Sub(f.first) <= store.MaxDirectoryAge || now.Sub(f.last) > tryAgainAfter {
		return nil
	}
	return fmt.Errorf("no events were written for %v: %w", now.Sub(f.first).Round(time.Millisecond), f.err)
}

// isRefused reports whether a flush was refused before its commit, so that surely nothing is recorded: it has waited for a
// lock for too long, or the data of the database has moved (trigger moved).
func isRefused(err error) bool {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pgErr.Code == LockNotAvailable || pgErr.Code == "MT001")
}

// LockNotAvailable is the SQLSTATE of a statement that waited too long for a lock.
const LockNotAvailable = "55P03"

// askDatabase makes the first round trip of a flush, and returns the connection with its transaction. If the connection
// fails, it tries once more: nothing was changed, and most likely the connection was stale.
func (w *Writer) askDatabase(ctx context.Context, f *flush) (session *pgxpool.Conn, err error) {
	for range 2 {
		if session, err = w.db.Pool.Acquire(ctx); err != nil {
			return nil, err
		}
		if err = f.sendQuestions(ctx, session.Conn()); err == nil {
			return session, nil
		}
		session.Release()
		if !conn.IsConnectionFailure(err) || ctx.Err() != nil {
			break
		}
		w.db.Reconnect(err)
	}
	return nil, err
}

// unavailableFlush is for errors before anything was committed. All of them are KindUnavailable: the marks themselves were
// checked, so whatever fails, the senders may try again.
func unavailableFlush(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", store.Unavailable("the database does not take events now"), err)
}

// settle finds out what became of a flush whose commit has failed, by a flush of the same id (package postgres). It writes
// also when that one is there, so that its own commit waits for the standbys: the first one may not have reached them.
func (w *Writer) settle(f *flush, failed error) error {
	ctx, cancel := context.WithTimeout(context.Background(), min(settleTimeout, 2*w.opt.FlushTimeout))
	defer cancel()
	var seq int64
	err := w.db.Retry(ctx, func() error {
		return w.db.Transact(ctx, func(tx pgx.Tx) error {
			merchant := f.allMerchants()[0]
			if _, err := tx.Exec(ctx, `INSERT INTO flush (merchant, id, node, seq, merchants) VALUES ($1, $2, $3, 0, '{}')
				ON CONFLICT (merchant, id) DO UPDATE SET node = excluded.node`, merchant, f.id, f.node); err != nil {
				return err
			}
			return tx.QueryRow(ctx, "SELECT seq FROM flush WHERE merchant = $1 AND id = $2", merchant, f.id).Scan(&seq)
		})
	})
	if err == nil && seq != 0 {
		err = w.db.FinishOnWorkers(ctx) // they commit after the coordinator
	}
	switch {
	case err != nil:
		w.db.Log.Error("the answer to a commit was lost: its events may be recorded or not", "events", len(f.events), "error", failed)
		return fmt.Errorf("%w: %w: %w", store.Uncertain("it is not known whether the events are recorded"), failed, err)
	case seq == 0:
		return unavailableFlush(failed)
	}
	w.db.Log.Warn("the answer to a commit was lost: the events are recorded", "error", failed)
	return nil
}

// whyRefused returns why events are refused before they are queued, or nil.
func (w *Writer) whyRefused() error {
	began := w.flushing.Load()
	if w.db.Age() > conn.RefuseAfter || began != nil && time.Since(*began) > conn.RefuseAfter {
		return conn.ErrNoAnswer
	}
	if w.space.bytesLeft() == 0 {
		return errFull
	}
	return nil
}
