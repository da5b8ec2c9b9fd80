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

// hold calls take, and keeps the locks that it takes until release is called. held is the context of the work. It ends with ctx, and when
// the connection is lost, because others may have the locks then: context.Cause(held) is errLost with the reason. That takes up to
// holdRenew if the connection was closed, and up to holdLease if nothing answers.
func (e *engine) hold(ctx context.Context, errLost error, take func(tx pgx.Tx) error) (held context.Context, release func(), err error) {
	tx, err := e.beginHold(ctx, 0, take)
	if err != nil {
		return nil, nil, err
	}
	held, end := context.WithCancelCause(ctx)
	stop := keepAlive(func(ctx context.Context) error { return ping(ctx, tx) }, func(err error) {
		end(fmt.Errorf("%w: %w", errLost, err))
	})
	return held, func() {
		end(nil)
		stop()
		rollback(tx)
	}, nil
}

// beginHold begins a transaction, and calls take to take its locks. take fails if it waits for one of them for longer than wait; 0 is no
// limit. The caller keeps the transaction alive.
func (e *engine) beginHold(ctx context.Context, wait time.Duration, take func(tx pgx.Tx) error) (pgx.Tx, error) {
	tx, err := e.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, err
	}
	if _, err = tx.Exec(ctx, "SELECT set_config('idle_in_transaction_session_timeout', $1, true), set_config('lock_timeout', $2, true)",
		strconv.FormatInt(holdLease.Milliseconds(), 10), strconv.FormatInt(wait.Milliseconds(), 10)); err == nil {
		err = take(tx)
	}
	if err != nil {
		rollback(tx)
		return nil, err
	}
	return tx, nil
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
