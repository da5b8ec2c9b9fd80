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

// life removes events in the background, one task after the other (package removal): those of persons and of deleted merchants
// (erase.go), and those that are past the retention (retention.go). What a task has to do is in control.db, or follows from it. So a kill
// loses nothing: the next start continues.
type life struct {
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

func newLife(e *engine, log *slog.Logger) *life {
	l := &life{Data: e.Data.Data, e: e, log: log, wake: make(chan struct{}, 1), changed: map[codec.MerchantKey]uint64{}, removed: map[codec.MerchantKey]uint64{}}
	l.runner = &removal.Runner{Engine: l, Metrics: removal.NewMetrics(e.opt.Metrics), Delay: removal.Delay}
	if e.opt.eager {
		l.runner.Delay = 0
	}
	return l
}

// Time implements removal.Engine.
func (l *life) Time(context.Context) (time.Time, error) { return l.e.opt.Now(), nil }

// run runs until the engine begins to close.
func (l *life) run() {
	ctx := l.e.opened
	var expiry time.Time // when expire last ran
	for ctx.Err() == nil {
		wait := lifeInterval
		try := func(what string, task func(context.Context) error) {
			if err := l.do(ctx, task); err != nil && ctx.Err() == nil {
				l.log.Error(what+" cannot be finished now, and is tried again", "error", err)
				wait = lifeRetry
			}
		}
		try("an erasure", l.runner.Run)
		if time.Since(expiry) >= expiryInterval {
			try("the removal of events that are past the retention", l.expire)
			expiry = time.Now()
		} else {
			try("the removal of events that are past the retention", l.retryExpiry)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-l.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// do runs a task when no other one runs.
func (l *life) do(ctx context.Context, task func(context.Context) error) error {
	l.busy.Lock()
	defer l.busy.Unlock()
	return task(ctx)
}

const (
	lifeInterval = time.Minute
	lifeRetry    = 5 * time.Second
)

// broken returns why the events of a merchant cannot be removed, in a test of that.
func (l *life) broken(m store.MerchantID) error {
	if l.e.opt.broken == nil {
		return nil
	}
	return l.e.opt.broken(m)
}

// nudge wakes run, which looks for tasks.
func (l *life) nudge() {
	select {
	case l.wake <- struct{}{}:
	default: // it will already
	}
}

// change is called before events of a merchant are removed, and done afterwards, with their number. In between, the index and the archive differ. So a
// comparison of the two waits, and skips merchants from which events were removed since it began (unchanged).
func (l *life) change(m codec.MerchantKey) (done func(events uint64)) {
	l.e.damage.removing.Lock()
	return func(events uint64) {
		l.mu.Lock()
		l.changes++
		l.changed[m] = l.changes
		l.removed[m] += events
		l.mu.Unlock()
		l.e.damage.removing.Unlock()
	}
}

// removedOf returns how many events of a merchant were removed since the engine was opened.
func (l *life) removedOf(m codec.MerchantKey) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.removed[m]
}

// moment returns the number of the last change, for unchanged.
func (l *life) moment() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes
}

// unchanged reports whether no events of a merchant were removed since a moment.
func (l *life) unchanged(m codec.MerchantKey, since uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed[m] <= since
}

// damaged logs a block of the archive that cannot be read. Its events are lost already.
func (l *life) damaged(d archive.Damage) {
	l.log.Error("a block of archived events cannot be read, and stays", "merchant", d.Merchant.ID(), "last_event", d.Last.EventID(), "error", d.Err)
}
