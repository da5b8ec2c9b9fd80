package local

import (
	"context"
	"slices"
	"sync"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/removal"
	"mtagd/store/rules"
)

// remover removes events in the background, one task after the other (package removal): those of persons and of deleted
// merchants (erase.go), and those that are past the retention (retention.go). The tasks follow from control.db. So a kill
// loses nothing: the next start continues.
type remover struct {
	*rules.Data // the tasks
	*stored

	index      *liveIndex
	archiver   *archiver
	background *background
	broken     func(store.MerchantID) error // Options.Broken

	wake   chan struct{} // holds a value when there is a task
	runner *removal.Runner
	busy   sync.Mutex // held by a task
}

func newRemover(tasks *rules.Data, a *archiver, opt Options) *remover {
	r := &remover{Data: tasks, stored: a.stored, index: a.index, archiver: a, background: a.background,
		broken: opt.Broken, wake: make(chan struct{}, 1)}
	r.runner = &removal.Runner{Engine: r, Metrics: removal.NewMetrics(opt.Metrics), Delay: removal.Delay,
		Reclaim: func(context.Context) error { return a.reclaim() }}
	if opt.eager {
		r.runner.Delay = 0
	}
	return r
}

// run runs until the engine begins to close.
func (r *remover) run() {
	ctx := r.opened
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
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-time.After(wait):
		}
	}
}

// expire removes the events of all merchants that are past the retention.
func (r *remover) expire(ctx context.Context) error { return r.runner.Expire(ctx, r.Expiring()) }

// retryExpiry attempts again what expire could not remove.
func (r *remover) retryExpiry(ctx context.Context) error {
	removals, err := r.Removals(ctx)
	failed := map[store.MerchantID]bool{}
	for _, x := range removals {
		if x.Kind == store.OfRetention {
			failed[x.Merchant] = true
		}
	}
	if err != nil || len(failed) == 0 {
		return err
	}
	return r.runner.Expire(ctx, slices.DeleteFunc(r.Expiring(), func(id store.MerchantID) bool { return !failed[id] }))
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
	expiryInterval  = 20 * time.Minute // between two removals of events that are past the retention for rules.ExpiryDelay
)

// nudge wakes run, which looks for tasks.
func (r *remover) nudge() {
	select {
	case r.wake <- struct{}{}:
	default: // it will already
	}
}

// damaged logs a block of the archive that cannot be read. Its events are lost already.
func (r *remover) damaged(d archive.Damage) {
	r.log.Error("a block of archived events cannot be read, and stays", "merchant", d.Merchant.ID(), "last_event", d.Last.EventID(), "error", d.Err)
}
