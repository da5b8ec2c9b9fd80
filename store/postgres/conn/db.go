// Package conn manages the connections to the database. It finds the primary, makes sure that the standbys have what readers
// see, repeats transactions whose connection fails, and classifies the server's errors. It does not know what is stored.
//
//	connect.go   the configuration of the connections
//	hosts.go     which server is the primary
//	db.go        opens the database, and runs work in the background
//	transact.go  transactions
//	guard.go     locks that protect work on other connections
//	confirm.go   waits until the standbys have what a read saw
//	query.go     rows and parameters of statements
//	encode.go    encodes parameters fast
//	citus.go     databases that the extension Citus distributes
//	errors.go    what the server's errors mean
package conn

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"mtagd/store/budget"
)

// Options are the inputs of a DB besides its address.
type Options struct {
	Log          *slog.Logger     // nil: slog.Default
	Now          func() time.Time // the clock, for tests; nil: the database's
	QueryTimeout time.Duration    // for tests; 0: the default
	Patience     time.Duration    // for tests on busy machines: the database may be silent for so much longer
	Tracer       pgx.QueryTracer  // for tests; nil: none
}

// DB is a database with its connections, and what is known of it.
type DB struct {
	Pool *pgxpool.Pool
	Log  *slog.Logger
	Now  func() time.Time // nil: the database's clock
	Node uuid.UUID        // identifies this opening of the database

	hosts        *hosts
	reading      *budget.Budget[string] // for the reads under way
	queryTimeout time.Duration
	patience     time.Duration
	confirmed    confirmed
	answered     atomic.Pointer[time.Time] // when the last answered question was sent

	Opened  context.Context // ends when Stop begins
	stop    context.CancelFunc
	running sync.WaitGroup
}

// Open connects to a database. It returns an error if commits do not wait until they are durable, or if the encoding is not
// UTF8.
func Open(ctx context.Context, address string, opt Options) (*DB, error) {
	config, err := configure(ctx, address)
	if err != nil {
		return nil, err
	}
	config.ConnConfig.Tracer = opt.Tracer
	hosts := newHosts(config)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	if err := InTime(ctx, func(ctx context.Context) error { return checkSettings(ctx, pool) }); err != nil {
		pool.Close()
		return nil, err
	}
	d := &DB{Pool: pool, Log: opt.Log, Now: opt.Now, Node: uuid.New(), hosts: hosts, reading: newReads(config),
		queryTimeout: cmp.Or(opt.QueryTimeout, queryTimeout), patience: opt.Patience}
	if d.Log == nil {
		d.Log = slog.Default()
	}
	d.Opened, d.stop = context.WithCancel(context.Background())
	return d, nil
}

// Go calls do in the background, with a context that ends when Stop begins.
func (d *DB) Go(do func(ctx context.Context)) { d.running.Go(func() { do(d.Opened) }) }

// Stop ends the background work, and waits for it.
func (d *DB) Stop() {
	d.stop()
	d.running.Wait()
}

// Close closes the connections. Call Stop first.
func (d *DB) Close() { d.Pool.Close() }

// AnswerTimeout is how long a step of Open may take. It is much longer than a healthy database needs.
const AnswerTimeout = 15 * time.Second

// InTime runs a step of Open with AnswerTimeout. If the server stops answering, for example because of a power cut, the step
// fails, and the next call of Open looks for the primary again.
func InTime(ctx context.Context, step func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, AnswerTimeout)
	defer cancel()
	return step(ctx)
}

// Repeat calls do at intervals, in the background. It calls changed with the first of consecutive errors, and with nil when
// do succeeds again.
func (d *DB) Repeat(interval time.Duration, do func(context.Context) error, changed func(err error)) {
	d.Go(func(ctx context.Context) {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		failing := false
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			err := do(ctx)
			if ctx.Err() != nil {
				return
			}
			if (err != nil) != failing {
				changed(err)
			}
			failing = err != nil
		}
	})
}

// DropMade closes the connections that were made before a time, so that calls that wait for a dead server fail immediately. It
// searches for the primary: all of the pool's connections may be on their way to another server.
func (d *DB) DropMade(before time.Time) {
	d.hosts.distrust(before)
	d.hosts.closeThose(func(c *trackedConn) bool { return c.madeBefore(before) })
	if d.hosts.several {
		d.Go(func(ctx context.Context) { _, _ = d.hosts.findPrimary(ctx) }) // who connects next gets the error
	}
}

// DropAll closes all connections, those that are being made too.
func (d *DB) DropAll() { d.hosts.closeThose(func(*trackedConn) bool { return true }) }

// Age returns how long ago the last query that the database has answered was sent, beyond a test's patience.
func (d *DB) Age() time.Duration { return time.Since(*d.answered.Load()) - d.patience }

// AnsweredTo records that the database has answered a query that was sent at a time, and that the standbys have what the
// answer says.
func (d *DB) AnsweredTo(asked time.Time) { d.answered.Store(&asked) }

// RefuseAfter is how long the database may be silent before events are refused immediately.
const RefuseAfter = 2 * time.Second

// Clock returns the database's time.
func (d *DB) Clock(ctx context.Context) (now time.Time, err error) {
	if d.Now != nil {
		return d.Now(), nil
	}
	err = d.Pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	return now, err
}
