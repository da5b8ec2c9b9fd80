// Package write records events and links.
//
//	record.go   Record, Resolve
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
	"mtagd/store/rules"
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
	db       *conn.DB
	counts   *count.Counters
	opt      Options
	queue    *groupcommit.Queue
	metrics  *groupcommit.Metrics
	flushing atomic.Pointer[time.Time] // when the flush under way began; nil: none is under way
	space    space
}

// New reads how much space is left, and returns a writer to a database.
func New(ctx context.Context, db *conn.DB, counts *count.Counters, opt Options) (*Writer, error) {
	opt.FlushTimeout = cmp.Or(opt.FlushTimeout, flushTimeout)
	w := &Writer{db: db, counts: counts, opt: opt, metrics: groupcommit.NewMetrics(), space: space{size: opt.Size}}
	w.queue = groupcommit.New(func(int) error { return w.whyRefused() }, func(int) {})
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

// Record implements store.Events.
func (w *Writer) Record(ctx context.Context, marks []store.Mark) error {
	if len(marks) == 0 {
		return ctx.Err()
	}
	for i := range marks {
		if err := rules.CheckMUID(marks[i].Identity.MUID); err != nil {
			return err
		}
		if i > 0 && marks[i].Merchant == marks[i-1].Merchant {
			continue
		}
		m, ok := conn.KeyOf(marks[i].Merchant)
		if !ok {
			return store.NotFound("merchant")
		}
		if err := w.counts.Accepts(m); err != nil {
			return err
		}
	}
	merchant, _ := conn.KeyOf(marks[0].Merchant)
	return w.queue.Record(ctx, merchant, marks)
}

// Resolve implements store.Events.
func (w *Writer) Resolve(ctx context.Context, id store.MerchantID, who store.Identity) (muid store.MUID, err error) {
	if err := rules.CheckMUID(who.MUID); err != nil {
		return "", err
	}
	merchant, ok := conn.KeyOf(id)
	if !ok {
		return "", store.NotFound("merchant")
	}
	switch {
	case who.MUID == "":
		var seen conn.Snapshot
		if err := w.db.ReadFor(ctx, string(id), func(tx pgx.Tx) (err error) {
			if muid, err = linkedMUID(ctx, tx, merchant, &who); err != nil || muid == "" {
				return err
			}
			return seen.ReadFrom(tx.QueryRow(ctx, conn.ReadSnapshot))
		}); err != nil || muid == "" {
			return "", err
		}
		return muid, w.db.Confirm(ctx, seen) // the caller will use it, so it must not be lost
	case len(who.Keys()) == 0:
		return who.MUID, ctx.Err()
	}
	if err := w.queue.Link(ctx, merchant, &who); err != nil {
		return "", err
	}
	return who.MUID, nil
}

// linkedMUID returns the muid of the first identifier that is linked to one, or "".
func linkedMUID(ctx context.Context, tx pgx.Tx, merchant uuid.UUID, who *store.Identity) (store.MUID, error) {
	found := links{}
	if err := conn.Query(ctx, tx, found.scanLink, readLinks, merchant, conn.Hashes(who.Keys())); err != nil {
		return "", err
	}
	for _, k := range who.Keys() {
		if l := found[linkKey{merchant, k}]; l.muid != "" {
			return l.muid, nil
		}
	}
	return "", nil
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
