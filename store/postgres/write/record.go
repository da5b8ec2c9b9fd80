// Package write records events and links.
//
//	record.go   the queue, and what Resolve looks up
//	decide.go   decides the outcome of each mark of a group
//	flush.go    writes a group
//	commit.go   commits it, or finds out whether it was committed
//	links.go    links of identifiers
//	space.go    how many bytes events may still take
package write

import (
	"cmp"
	"context"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
	"mtagd/store/groupcommit"
	"mtagd/store/postgres/conn"
	"mtagd/store/postgres/count"
)

// Options are the inputs of a Writer besides its database.
type Options struct {
	Size         int64                       // about how many bytes events may take; 0: see defaultSize
	FlushTimeout time.Duration               // for tests; 0: the default
	Recorded     func(merchants []uuid.UUID) // called with the merchants that have events in a flush
	Metrics      prometheus.Registerer       // nil: metrics are not exported
}

// Writer records the events of a node.
type Writer struct {
	groupcommit.Recorder

	db       *conn.DB
	counts   *count.Counters
	opt      Options
	queue    *groupcommit.Queue
	metrics  *groupcommit.Metrics
	flushing atomic.Pointer[time.Time] // when the flush under way began; nil: none is under way
	failed   atomic.Pointer[failures]  // nil: none since events were written
	space    space
}

// New reads how much space is left, and returns a writer to a database.
func New(ctx context.Context, db *conn.DB, counts *count.Counters, opt Options) (*Writer, error) {
	opt.FlushTimeout = cmp.Or(opt.FlushTimeout, flushTimeout)
	w := &Writer{db: db, counts: counts, opt: opt, metrics: groupcommit.NewMetrics(), space: space{size: opt.Size}}
	w.queue = groupcommit.New(func(int) error { return w.whyRefused() }, func(int) {})
	w.Recorder = groupcommit.Recorder{Queue: w.queue, Accepts: func(m store.MerchantKey) error { return w.counts.Accepts(uuid.UUID(m)) }, Linked: w.linked}
	return w, w.LookAtSpace(ctx)
}

// KeepFlushing accepts events until Finish. Metrics must not have those of another writer.
func (w *Writer) KeepFlushing() {
	if w.opt.Metrics != nil {
		w.opt.Metrics.MustRegister(w.metrics.Collectors(w.queue)...)
	}
	w.db.Go(func(context.Context) { w.commitGroups() })
	w.watchSpace()
}

// Finish makes the writer refuse further events. Accepted events are recorded before conn.DB.Stop returns.
func (w *Writer) Finish() { w.queue.Close() }

// linked returns the muid of the first identifier that is linked to one, or "", once the standbys have the link.
func (w *Writer) linked(ctx context.Context, m store.MerchantKey, who *store.Identity) (muid store.MUID, err error) {
	var seen conn.Snapshot
	if err := w.db.ReadFor(ctx, string(m.ID()), func(tx pgx.Tx) (err error) {
		found := links{}
		into, add := found.reading()
		if err := conn.Query(ctx, tx, into, add, readLinks, uuid.UUID(m), conn.Hashes(who.Keys())); err != nil {
			return err
		}
		if muid = found.ofFirst(uuid.UUID(m), who).muid; muid == "" {
			return nil
		}
		return seen.ReadFrom(tx.QueryRow(ctx, conn.ReadSnapshot))
	}); err != nil || muid == "" {
		return "", err
	}
	return muid, w.db.Confirm(ctx, seen)
}

// commitGroups writes group after group, until the queue is closed and empty.
func (w *Writer) commitGroups() {
	timer := time.AfterFunc(groupcommit.MaxGatherTime, w.queue.Recheck)
	defer timer.Stop()
	for w.queue.Next(timer) {
		f := newFlush(w.db.Node, w.db.Now)
		for parts := w.queue.Take(); len(parts) > 0; parts = w.queue.Take() {
			for _, p := range parts {
				if p.Link != nil {
					f.addLink(p.Merchant, p.Link)
					continue
				}
				for i := p.From; i < p.To; i++ {
					f.addMark(&p.Marks[i])
				}
			}
		}
		err := w.commitFlush(f)
		w.queue.Finish(err)
	}
}
