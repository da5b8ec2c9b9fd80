package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// A hold is a transaction that only has locks, while the work that they protect is done on other connections. The server hears of its
// holder all the time. When it does not, it ends the transaction, so that others get the locks, even if the holder is gone or stopped.
const (
	holdRenew = time.Second     // how often the server hears of the holder
	holdLease = 5 * time.Second // how long the server hears nothing before it ends the transaction
)

// hold is a transaction with locks, and the context of the work that they protect.
type hold struct {
	held context.Context
	end  context.CancelCauseFunc
	tx   pgx.Tx
	stop func()
}

// hold calls take, and keeps the locks that it takes until release is called. held ends with ctx, and when the connection is lost, because
// others may have the locks then: context.Cause(held) is errLost with the reason. That takes up to holdRenew if the connection was
// closed, and up to holdLease if nothing answers.
func (e *engine) hold(ctx context.Context, errLost error, take func(tx pgx.Tx) error) (*hold, error) {
	tx, err := e.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, err
	}
	if _, err = tx.Exec(ctx, "SELECT set_config('idle_in_transaction_session_timeout', $1, true)", strconv.FormatInt(holdLease.Milliseconds(), 10)); err == nil {
		err = take(tx)
	}
	if err != nil {
		rollback(tx)
		return nil, err
	}
	h := &hold{tx: tx}
	h.held, h.end = context.WithCancelCause(ctx)
	h.stop = keepAlive(func(ctx context.Context) error { return ping(ctx, tx) }, func(err error) {
		h.end(fmt.Errorf("%w: %w", errLost, err))
	})
	return h, nil
}

// release ends the transaction. What it has changed is undone, unless it was committed.
func (h *hold) release() {
	h.end(nil)
	h.stop()
	rollback(h.tx)
}

// commit commits what take has changed, and so frees the locks.
func (h *hold) commit(ctx context.Context) error {
	h.stop()
	conn := h.tx.Conn().PgConn()
	if err := h.tx.Commit(ctx); err != nil {
		return err
	}
	return checkReplicated(conn)
}

func ping(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, "SELECT 1")
	return err
}

// rollback ends a transaction, or its connection. It does nothing when the transaction has ended.
func rollback(tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.Background(), connectTimeout)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) && !tx.Conn().IsClosed() {
		_ = tx.Conn().Close(ctx)
	}
}

// keepAlive calls beat every holdRenew until stop is called or beat fails. When beat fails, it calls lost. When stop returns, neither runs.
func keepAlive(beat func(ctx context.Context) error, lost func(error)) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		tick := time.NewTicker(holdRenew)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			// A call that stop interrupts would end the connection of its transaction. So it has a time of its own: the holder gives up
			// when the server does.
			once, done := context.WithTimeout(context.WithoutCancel(ctx), holdLease-holdRenew)
			err := beat(once)
			done()
			if err != nil {
				lost(err)
				return
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}
