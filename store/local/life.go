package local

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
)

// life removes events in the background, one task after the other: those of persons and of deleted merchants (erase.go),
// and those that are past the retention (retention.go). What a task has to do is in control.db, or follows from it: so a kill
// loses nothing, and the next start goes on.
type life struct {
	e    *engine
	log  *slog.Logger
	wake chan struct{} // holds a value when there is a task

	busy    sync.Mutex // held by a task
	failing bool       // an erasure has failed since run looked for some; guarded by busy

	mu      sync.Mutex
	changed map[codec.MerchantKey]uint64 // the number of the last change
	changes uint64
}

func newLife(e *engine, log *slog.Logger) *life {
	return &life{e: e, log: log, wake: make(chan struct{}, 1), changed: map[codec.MerchantKey]uint64{}}
}

// run runs until the engine begins to close.
func (l *life) run() {
	ctx := l.e.opened
	var expiry time.Time // of the last run
	for ctx.Err() == nil {
		wait := lifeInterval
		try := func(what string, task func(context.Context) error) {
			if err := l.do(ctx, task); err != nil && ctx.Err() == nil {
				l.log.Error(what+" cannot be finished now, and is tried again", "error", err)
				wait = lifeRetry
			}
		}
		try("an erasure", func(ctx context.Context) error {
			l.failing = false
			return l.erase(ctx)
		})
		if time.Since(expiry) >= expiryInterval {
			try("the removal of events that are past the retention", l.expire)
			expiry = time.Now()
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

// do does a task when no other one is under way.
func (l *life) do(ctx context.Context, task func(context.Context) error) error {
	l.busy.Lock()
	defer l.busy.Unlock()
	return task(ctx)
}

const (
	lifeInterval = time.Minute
	lifeRetry    = 5 * time.Second
)

// nudge makes run look for tasks.
func (l *life) nudge() {
	select {
	case l.wake <- struct{}{}:
	default: // it will
	}
}

// change notes that events of a merchant leave, until done is called: the index and the archive differ meanwhile. A comparison
// of the two waits, and passes over merchants that have changed since it began (unchanged).
func (l *life) change(m codec.MerchantKey) (done func()) {
	l.e.damage.removing.Lock()
	return func() {
		l.mu.Lock()
		l.changes++
		l.changed[m] = l.changes
		l.mu.Unlock()
		l.e.damage.removing.Unlock()
	}
}

// moment returns a number for unchanged.
func (l *life) moment() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changes
}

// unchanged reports whether no events of a merchant have left since a moment.
func (l *life) unchanged(m codec.MerchantKey, since uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed[m] <= since
}

// damaged is for blocks of the archive that cannot be read: what is in them is lost already.
func (l *life) damaged(d archive.Damage) {
	l.log.Error("a block of archived events cannot be read, and stays", "merchant", d.Merchant.ID(), "last_event", d.Last.EventID(), "error", d.Err)
}
