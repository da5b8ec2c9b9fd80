package local

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/badgerdb"
	"mtagd/store/removal"
	"mtagd/store/rules"
)

// remover removes events in the background, one task after the other (package removal): those of persons and of deleted
// merchants (erase.go), and those that are past the retention (retention.go). The tasks follow from control.db
// and DIR/expiring. So a kill loses nothing: the next start continues.
type remover struct {
	*rules.Data // the tasks
	*stored

	index      *liveIndex
	archiver   *archiver
	background *background
	broken     func(store.MerchantID) error // Options.Broken

	runner *removal.Runner
	busy   sync.Mutex // held by a task
}

func newRemover(tasks *rules.Data, a *archiver, opt Options) *remover {
	r := &remover{Data: tasks, stored: a.stored, index: a.index, archiver: a, background: a.background, broken: opt.Broken}
	r.runner = removal.NewRunner(r, opt.Metrics, opt.eager)
	r.runner.Reclaim = func(context.Context) error { return a.reclaim() }
	return r
}

// run runs until the engine begins to close.
func (r *remover) run() {
	var expired time.Time // when all merchants were looked at last
	r.runner.Keep(r.opened, func(ctx context.Context) (err error) {
		try := func(what string, task func(context.Context) error) {
			if failed := r.do(ctx, task); failed != nil && ctx.Err() == nil {
				r.logFailure(what, failed)
				err = failed
			}
		}
		try("an erasure", r.runner.Run)
		again := time.Since(expired) < expiryInterval
		try("the removal of events that are past the retention", func(ctx context.Context) error {
			return r.runner.Expire(ctx, r.Expiring(), again)
		})
		if !again {
			expired = time.Now()
		}
		return err
	})
}

// logFailure logs what a task could not do. If all its failed steps only wait for a backup, that is no error.
func (r *remover) logFailure(task string, err error) {
	steps := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok { // errors.Join of package removal
		steps = joined.Unwrap()
	}
	level := slog.LevelInfo
	for _, step := range steps {
		if !errors.Is(step, badgerdb.ErrCopied) {
			level = slog.LevelError
		}
	}
	r.log.Log(r.opened, level, task+" cannot be finished now, and is tried again", "error", err)
}

// expiryInterval is the time between two removals of events that are past the retention for rules.ExpiryDelay.
const expiryInterval = 20 * time.Minute

// do runs a task when no other one runs.
func (r *remover) do(ctx context.Context, task func(context.Context) error) error {
	r.busy.Lock()
	defer r.busy.Unlock()
	return task(ctx)
}

// damaged logs a block of the archive that cannot be read. Its events are lost already.
func (r *remover) damaged(d archive.Damage) {
	r.log.Error("a block of archived events cannot be read, and stays", "merchant", d.Merchant.ID(), "last_event", d.Last.EventID(), "error", d.Err)
}
