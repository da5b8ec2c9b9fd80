package conn

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	guardRenew = time.Second     // how often the holder sends a sign of life to the server
	guardLease = 5 * time.Second // after this time without one, the server ends the transaction
)

// Guard is a transaction that only holds locks. The work that they protect uses other connections. The holder keeps sending
// signs of life. Without them, the server ends the transaction, so that others get the locks even if the holder is gone or
// stopped.
type Guard struct {
	Held context.Context // for the protected work
	end  context.CancelCauseFunc
	tx   pgx.Tx
	stop context.CancelFunc // of the signs of life
	work sync.WaitGroup
}

// Guard calls take, and keeps the locks of its transaction until Release or Finish. Held ends with ctx, or when the
// connection is lost, because then others may get the locks: context.Cause(Held) is errLost with the reason. Guard notices a
// closed connection after at most guardRenew, and a silent server after at most guardLease.
func (d *DB) Guard(ctx context.Context, errLost error, take func(tx pgx.Tx) error) (*Guard, error) {
	tx, err := d.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, err
	}
	if _, err = tx.Exec(ctx, "SELECT set_config('idle_in_transaction_session_timeout', $1, true)", strconv.FormatInt(guardLease.Milliseconds(), 10)); err == nil {
		err = take(tx)
	}
	if err != nil {
		Rollback(tx)
		return nil, err
	}
	g := &Guard{tx: tx}
	g.Held, g.end = context.WithCancelCause(ctx)
	renewing, stop := context.WithCancel(context.Background())
	g.stop = stop
	g.work.Go(func() {
		if err := g.renew(renewing.Done()); err != nil {
			g.end(fmt.Errorf("%w: %w", errLost, err))
		}
	})
	return g, nil
}

// renew sends signs of life until Release or Finish. It returns the error that stopped it.
func (g *Guard) renew(stopped <-chan struct{}) error {
	tick := time.NewTicker(guardRenew)
	defer tick.Stop()
	for {
		select {
		case <-stopped:
			return nil
		case <-tick.C:
		}
		// Release must not interrupt the query, because that would close the connection. So the query has a timeout of its
		// own: the holder gives up when the server does.
		ctx, cancel := context.WithTimeout(context.Background(), guardLease-guardRenew)
		_, err := g.tx.Exec(ctx, "SELECT 1")
		cancel()
		if err != nil {
			return err
		}
	}
}

// Release rolls the transaction back, unless it was committed.
func (g *Guard) Release() {
	g.end(nil)
	g.stop()
	g.work.Wait()
	Rollback(g.tx)
}

// Finish commits the changes of take, and releases the locks.
func (g *Guard) Finish(ctx context.Context) error {
	g.stop()
	g.work.Wait()
	conn := g.tx.Conn().PgConn()
	if err := g.tx.Commit(ctx); err != nil {
		return err
	}
	return CheckReplicated(conn)
}

// Rollback ends a transaction, or its connection. It does nothing when the transaction has ended.
func Rollback(tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.Background(), ConnectTimeout)
	defer cancel()
	if err := tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) && !tx.Conn().IsClosed() {
		_ = tx.Conn().Close(ctx)
	}
}
