// Package postgres is the engine on a PostgreSQL server, for several nodes that have no data of their own. PostgreSQL's
// synchronous standbys keep what was acknowledged; each node holds the directory in memory, and nothing else.
//
// # Control data
//
// Package rules has the rules, and all records in memory. They are stored in the table record. A change takes the lock
// conn.LockControl for its transaction, so that changes are made one after the other, on whatever node. It gets a row in the
// table change, numbered in the order of the commits, and its records get that number. Each node reads what is new several
// times a second (control/follow.go), before a change, and before it answers from the control data. A node that could not
// read for store.MaxDirectoryAge is not ready.
//
// # Recording
//
// Requests wait in a queue (package groupcommit), of which one goroutine makes groups. A group is one transaction of two
// round trips:
//
//  1. The event_ids of the group are inserted, which shows those that were there before. The links that the group needs are
//     read. Now the outcome of each mark is known.
//  2. Links are written. The lock conn.LockReceipt is taken, and the flush gets its number. Events, deltas and the flush are
//     written. COMMIT waits neither for the disk nor for the standbys. Then a second commit, of a message that nobody reads,
//     waits for both. It follows the first one in the write-ahead log: when the standbys have it, they have the flush. Only
//     then are the marks answered.
//
// The lock is held until the first commit is visible. So flushes are numbered in the order of their commits, and whoever
// sees a flush sees all before it: no feed passes an event that may still be committed. The second commit waits without the
// lock, so the next flush of any node is written meanwhile.
//
// So a flush is visible before the standbys have it. It is lost if the server loses its power, or a standby becomes the
// primary, before that. Its senders were not told that it is recorded, but listings, totals and exports may have shown its
// events. Only what is on the standbys (conn/confirm.go) is acknowledged, reported as a duplicate, passed to a feed or a
// watch, or returned as a muid by Resolve.
//
// Locks are taken in one order: event_ids, links, conn.LockReceipt. All other rows of a flush are only inserted.
//
// When the answer of COMMIT is lost, the node inserts a flush of the same id that has no number. If one with this id is
// there, the first one was committed. If not, it never can be. That insert waits for the standbys.
//
// # Distributed by merchant
//
// The extension Citus may spread the tables of events over several servers, the workers (schema/distribute.go). All rows of
// a merchant are on one. A statement about them is about one merchant, which it compares with its first parameter: so Citus
// asks one server. Only what a group writes has the rows of all its merchants in one statement.
//
// A flush then commits in two phases: all workers prepare, the coordinator commits, with the row of the flush, and the
// workers commit before COMMIT returns and the lock is free. Here COMMIT waits for the disks and the standbys. Whoever reads
// a flush's number must wait for the lock before its events (conn.DB.AwaitCommits). If a worker fails in the second phase,
// COMMIT succeeds with a warning: then the events are acknowledged when that worker has committed too (settle).
//
// # Time
//
// What nodes must agree on is decided by the database's clock. A node's own clock only measures how long something takes.
//
//	postgres.go   opens and closes the engine
//	conn/         connections, transactions, and whether the standbys have what is visible
//	schema/       the tables, and how Citus distributes them
//
//	control/      control data: the driver of package rules
//	nodes/        what else nodes share: files, leases, messages
//
//	write/        records events and links
//	count/        how many events there are in each minute, hour and day
//
//	read/         pages, summaries, feeds, persons, and the check of all data
//
//	remove/       removes events in the background
//
//	export.go     reads all data, for another engine (package migrate); keeps everybody from changing it meanwhile
//	import.go     takes all data of another engine
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/control"
	"mtagd/store/postgres/count"
	"mtagd/store/postgres/nodes"
	"mtagd/store/postgres/read"
	"mtagd/store/postgres/remove"
	"mtagd/store/postgres/schema"
	"mtagd/store/postgres/write"
)

// Options are an engine's inputs besides its database.
type Options struct {
	Log *slog.Logger // nil: slog.Default

	// Now is the clock, for tests. nil: the database's.
	Now func() time.Time

	// Retention is how long events of merchants without a retention of their own are kept. 0: as when an engine was last
	// opened with another value, at first for ever.
	Retention store.Retention

	// Size is about how many bytes events may take in the database. 0: 100 GB, or twice their present size if that is more.
	Size int64

	Metrics prometheus.Registerer // gets the engine's metrics, none of which it may have already; nil: they are not exported

	// For tests. false and 0: the default.
	eager        bool // deleted merchants are removed without removal.Delay
	keepDeltas   bool // the node does not roll up deltas by itself
	FlushTimeout time.Duration
	Patience     time.Duration // the database may be silent for so much longer before a node refuses
	queryTimeout time.Duration
	verifyPiece  int64
	tracer       pgx.QueryTracer // sees all statements
	AuditLimits  store.AuditLimits
}

// Open opens the engine in a database, and creates its tables there if it is new. The address is a postgres:// URL, or
// keywords and values, as PostgreSQL's own tools take it. With several servers in it, the one that accepts writes is used.
func Open(ctx context.Context, address string, opt Options) (store.Engine, error) {
	e, err := openEngine(ctx, address, opt)
	if err != nil {
		return nil, conn.Unavailable(fmt.Errorf("open the database: %w", err))
	}
	return e, nil
}

// CheckDatabase returns why Open would fail: the database cannot be reached, or has the schema of a newer version. It changes
// nothing.
func CheckDatabase(ctx context.Context, address string) error {
	db, err := conn.Open(ctx, address, conn.Options{})
	if err != nil {
		return err
	}
	defer db.Close()
	return schema.CheckNotNewer(ctx, db.Pool)
}

// engine implements store.Engine.
type engine struct {
	*control.Control
	*nodes.Nodes
	*read.Reader
	*write.Writer
	*remove.Remover

	db     *conn.DB
	counts *count.Counters
}

var _ store.Engine = (*engine)(nil)

func openEngine(ctx context.Context, address string, opt Options) (*engine, error) {
	db, err := conn.Open(ctx, address, conn.Options{Log: opt.Log, Now: opt.Now, QueryTimeout: opt.queryTimeout, Patience: opt.Patience, Tracer: opt.tracer})
	if err != nil {
		return nil, err
	}
	e := &engine{db: db, counts: count.New(db)}
	if err := e.openRooms(ctx, opt); err != nil {
		db.Close()
		return nil, err
	}
	// Metrics are registered last: Open may be called again with the same registry after it has failed.
	e.Remover = remove.New(db, e.Control, e.counts, e.Reader, opt.eager, opt.Metrics)
	e.News = e.Watchers.Wake
	e.Follow()
	e.KeepFlushing()
	db.Go(func(ctx context.Context) { e.KeepTidy(ctx, e.Tidy) })
	if !opt.keepDeltas {
		e.counts.KeepRolledUp()
	}
	db.Go(e.KeepRemoving)
	return e, nil
}

// openRooms opens the parts of the engine that need the database.
func (e *engine) openRooms(ctx context.Context, opt Options) error {
	if err := schema.Prepare(ctx, e.db.Pool); err != nil {
		return err
	}
	return conn.InTime(ctx, func(ctx context.Context) error {
		if err := refuseMoved(ctx, e.db.Pool); err != nil {
			return err
		}
		var err error
		if e.Control, err = control.Load(ctx, e.db, cmp.Or(opt.AuditLimits, store.DefaultAuditLimits)); err != nil {
			return err
		}
		e.Nodes, e.Reader = nodes.New(e.db, e.Control.Ready), read.New(e.db, e.Control, opt.verifyPiece)
		e.Reader.OwnerOf = e.Directory().Owner
		if e.Writer, err = write.New(ctx, e.db, e.counts, write.Options{Size: opt.Size, FlushTimeout: opt.FlushTimeout, Recorded: e.Watchers.Wake, Metrics: opt.Metrics}); err != nil || opt.Retention == 0 {
			return err
		}
		return e.SetDefaultRetention(ctx, opt.Retention)
	})
}

// Ready implements store.Engine.
func (e *engine) Ready() error {
	return cmp.Or(e.Control.Ready(), e.Writer.Ready())
}

// Close implements store.Engine.
func (e *engine) Close() error {
	e.Finish()
	e.db.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), conn.ConnectTimeout)
	defer cancel()
	err := e.Tidy(ctx)
	if errors.Is(err, store.ErrNeedsRestart) {
		err = nil // it was told before
	}
	if conn.IsConnectionFailure(err) {
		err = nil      // uses of keys in the last minute are lost, as KeyUseDelay allows
		e.db.DropAll() // otherwise the pool would wait for the server, connection by connection
	}
	e.db.Close()
	return err
}
