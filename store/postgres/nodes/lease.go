package nodes

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"mtagd/store"
	"mtagd/store/postgres/conn"
)

// A lease ends leaseFor after it was renewed last, by the database's clock. Its holder gives it up a little earlier, by its
// own.
const (
	leaseFor   = 30 * time.Second
	leaseRenew = 5 * time.Second
	leaseGiven = leaseFor - leaseRenew

	// leaseRelease is how long Release tries. If it fails, the lease expires by itself. A node that stops must not wait for
	// a database that is gone.
	leaseRelease = 5 * time.Second
)

// lease implements store.Lease.
type lease struct {
	of     *Nodes
	name   string
	id     uuid.UUID
	held   context.Context
	giveUp context.CancelFunc
}

// Lease implements store.Shared.
func (n *Nodes) Lease(ctx context.Context, name string) (store.Lease, error) {
	l := &lease{of: n, name: name, id: uuid.New()}
	began, taken := time.Now(), false
	err := n.db.RetryFor(ctx, conn.FailOverTimeout, func(ctx context.Context) error {
		// An attempt that takes longer is made again: little would be left of the lease.
		ctx, cancel := context.WithTimeout(ctx, leaseRenew)
		defer cancel()
		began = time.Now()
		now, err := n.db.Clock(ctx)
		if err != nil {
			return err
		}
		// The time is a parameter, so that it is the same on all servers that have the table.
		done, err := n.db.Pool.Exec(ctx, `INSERT INTO lease (name, holder, expires) VALUES ($1, $2, $3)
			ON CONFLICT (name) DO UPDATE SET holder = excluded.holder, expires = excluded.expires
			WHERE lease.holder = excluded.holder OR lease.expires < $4`, name, l.id, now.Add(leaseFor), now)
		taken = err == nil && done.RowsAffected() > 0
		return err
	})
	if err != nil || !taken {
		return nil, err
	}
	l.held, l.giveUp = context.WithCancel(n.db.Opened)
	n.db.Go(func(context.Context) { l.keepRenewed(began) })
	return l, nil
}

// keepRenewed renews the lease until it is released or lost. renewed is when the last successful request for it began, from
// which its duration counts.
func (l *lease) keepRenewed(renewed time.Time) {
	defer l.giveUp()
	tick := time.NewTicker(leaseRenew)
	defer tick.Stop()
	for {
		select {
		case <-l.held.Done():
			return
		case <-time.After(time.Until(renewed.Add(leaseGiven))):
			l.of.db.Log.Warn("a lease was lost", "name", l.name, "error", context.DeadlineExceeded)
			return
		case <-tick.C:
		}
		began := time.Now()
		ctx, cancel := context.WithDeadline(l.held, renewed.Add(leaseGiven))
		err := l.Renew(ctx)
		cancel()
		switch {
		case err == nil:
			renewed = began
		case errors.Is(err, store.ErrLeaseLost) || time.Since(renewed) >= leaseGiven:
			l.of.db.Log.Warn("a lease was lost", "name", l.name, "error", err)
			return
		}
	}
}

// Held implements store.Lease.
func (l *lease) Held() context.Context { return l.held }

// Renew implements store.Lease. It also renews a lease that has run out, if nobody else has taken it.
func (l *lease) Renew(ctx context.Context) error {
	return l.of.db.RetryFor(ctx, conn.FailOverTimeout, func(ctx context.Context) error {
		now, err := l.of.db.Clock(ctx)
		if err != nil {
			return err
		}
		done, err := l.of.db.Pool.Exec(ctx, "UPDATE lease SET expires = $3 WHERE name = $1 AND holder = $2", l.name, l.id, now.Add(leaseFor))
		if err == nil && done.RowsAffected() == 0 {
			l.giveUp()
			return store.ErrLeaseLost
		}
		return err
	})
}

// Release implements store.Lease.
func (l *lease) Release(ctx context.Context) error {
	l.giveUp()
	again := false // an earlier try may have released it
	return l.of.db.RetryFor(ctx, leaseRelease, func(ctx context.Context) error {
		done, err := l.of.db.Pool.Exec(ctx, "DELETE FROM lease WHERE name = $1 AND holder = $2", l.name, l.id)
		if err == nil && done.RowsAffected() == 0 && !again {
			return store.ErrLeaseLost
		}
		again = true
		return err
	})
}
