package local

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/removal"
	"mtagd/store/rules"
)

// remover removes events in the background, one task after the other (package removal): those of persons and of deleted
// merchants (erase.go), and those that are past the retention (retention.go). The tasks follow from control.db. So a kill
// loses nothing: the next start continues.
type remover struct {
	*rules.Data // the tasks

	e    *engine
	log  *slog.Logger
	wake chan struct{} // holds a value when there is a task

	runner *removal.Runner
	busy   sync.Mutex // held by a task

	mu      sync.Mutex
	changed map[codec.MerchantKey]uint64 // the number of the last change
	changes uint64
	removed map[codec.MerchantKey]uint64 // how many events
}

func newRemover(e *engine, log *slog.Logger) *remover {
	r := &remover{Data: e.Data.Data, e: e, log: log, wake: make(chan struct{}, 1), changed: map[codec.MerchantKey]uint64{}, removed: map[codec.MerchantKey]uint64{}}
	r.runner = &removal.Runner{Engine: r, Metrics: removal.NewMetrics(e.opt.Metrics), Delay: removal.Delay,
		Reclaim: func(context.Context) error { return e.archiver.reclaim() }}
	if e.opt.eager {
		r.runner.Delay = 0
	}
	return r
}

// run runs until the engine begins to close.
func (r *remover) run() {
	ctx := r.e.opened
	var expiry time.Time // when expire last ran
	for ctx.Err() == nil {
		wait := removalInterval
		try := func(what string, task func(context.Context) error) {
			if err := r.do(ctx, task); err != nil && ctx.Err() == nil {
				r.log.Error(what+" cannot be finished now, and is tried again", "error", err)
				wait = removalRetry
			}
		}
		try("an erasure", r.runner.Run)
		if time.Since(expiry) >= expiryInterval {
			try("the removal of events that are past the retention", r.expire)
			expiry = time.Now()
		} else {
			try("the removal of events that are past the retention", r.retryExpiry)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// do runs a task when no other one runs.
func (r *remover) do(ctx context.Context, task func(context.Context) error) error {
	r.busy.Lock()
	defer r.busy.Unlock()
	return task(ctx)
}

const (
	removalInterval = time.Minute
	removalRetry    = 5 * time.Second
)

// broken returns why the events of a merchant cannot be removed, in a test of that.
func (r *remover) broken(m store.MerchantID) error {
	if r.e.opt.broken == nil {
		return nil
	}
	return r.e.opt.broken(m)
}

// nudge wakes run, which looks for tasks.
func (r *remover) nudge() {
	select {
	case r.wake <- struct{}{}:
	default: // it will already
	}
}

// change is called before events of a merchant are removed, and done afterwards, with their number. In between, the index
// and the archive differ. So a comparison of the two waits, and skips merchants from which events were removed since it
// began (unchanged).
func (r *remover) change(m codec.MerchantKey) (done func(events uint64)) {
	r.e.damage.removing.Lock()
	return func(events uint64) {
		r.mu.Lock()
		r.changes++
		r.changed[m] = r.changes
		r.removed[m] += events
		r.mu.Unlock()
		r.e.damage.removing.Unlock()
	}
}

// removedOf returns how many events of a merchant were removed since the engine was opened.
func (r *remover) removedOf(m codec.MerchantKey) uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.removed[m]
}

// moment returns the number of the last change, for unchanged.
func (r *remover) moment() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changes
}

// unchanged reports whether no events of a merchant were removed since a moment.
func (r *remover) unchanged(m codec.MerchantKey, since uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed[m] <= since
}

// damaged logs a block of the archive that cannot be read. Its events are lost already.
func (r *remover) damaged(d archive.Damage) {
	r.log.Error("a block of archived events cannot be read, and stays", "merchant", d.Merchant.ID(), "last_event", d.Last.EventID(), "error", d.Err)
}
