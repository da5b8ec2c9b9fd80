// Package removal runs what engines remove in the background: the events of persons, those of deleted merchants, and those
// that are past the retention. Each is a task that is stored, with its own attempts. One that fails holds up no other.
package removal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
)

// Engine stores the tasks, and does their steps. Each step may be done again: it then removes what is left.
type Engine interface {
	// Tasks returns the removals that are not done, the oldest first.
	Tasks(ctx context.Context) (erasures []store.Erasure, removals []store.Removal, err error)
	// Now returns the time that attempts are noted with.
	Now(ctx context.Context) (time.Time, error)

	// UpdateErasures replaces erasures by change(erasure). change also returns further keys of the person: if the
	// erasure has Suppress, events with them are refused from now on.
	UpdateErasures(ctx context.Context, ids []store.ErasureID, change func(e *store.Erasure) (suppressed []store.IdentityKey)) error
	// SaveRemovals stores removals, and forgets those that are done.
	SaveRemovals(ctx context.Context, removals []store.Removal) error

	// EraseOf removes the events of persons of one merchant from all answers. It stores how far the erasures are, up to
	// ErasureRemoving.
	EraseOf(ctx context.Context, m store.MerchantID, erasures []store.Erasure) error
	// Drop removes everything of a deleted merchant.
	Drop(ctx context.Context, m store.MerchantID) error
	// Purge removes the bytes of what EraseOf and Drop have removed.
	Purge(ctx context.Context) error

	// ExpiredBefore returns the time (µs since 1970) before which a merchant's events are removed; math.MinInt64: none.
	ExpiredBefore(m store.MerchantID, now time.Time) int64
	// ExpireOf removes the events of a merchant before a time, and reports whether there were any.
	ExpireOf(ctx context.Context, m store.MerchantID, before int64) (some bool, err error)
}

// Delay is how long after its deletion the events of a merchant are removed. By then, all requests that began before have
// ended, and events that were on their way are refused or committed.
const Delay = time.Minute

// ErrWaits is in the error of a step that will succeed without anybody's help, or when there is space on the disk again. It
// is not noted as a failure, whose pauses get long: the next call of Run tries it again.
var ErrWaits = errors.New("a removal must wait")

// Runner runs the removals of an engine, one round after the other.
type Runner struct {
	engine  Engine
	metrics *metrics
	delay   time.Duration // Delay, or less in tests

	// Reclaim gives back the space of what ExpireOf has removed; nil: that needs nothing.
	Reclaim func(ctx context.Context) error

	wake    chan struct{} // holds a value when there may be a task
	failing atomic.Bool   // the last attempt at an erasure or a deletion has failed
}

// NewRunner returns a runner whose metrics are registered, unless metrics is nil. eager, for tests, leaves out Delay.
func NewRunner(e Engine, metrics prometheus.Registerer, eager bool) *Runner {
	r := &Runner{engine: e, metrics: newMetrics(metrics), delay: Delay, wake: make(chan struct{}, 1)}
	if eager {
		r.delay = 0
	}
	return r
}

// How long Keep waits for the next round.
const (
	interval   = time.Minute
	retryAfter = 5 * time.Second
)

// Keep calls do for each round, until ctx ends: after each Wake, once a minute, and soon after an error, or while an
// erasure or a deletion that has failed waits for its next attempt.
func (r *Runner) Keep(ctx context.Context, do func(ctx context.Context) error) {
	for ctx.Err() == nil {
		wait := interval
		if do(ctx) != nil || r.failing.Load() {
			wait = retryAfter
		}
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-time.After(wait):
		}
	}
}

// Wake begins the next round at once.
func (r *Runner) Wake() {
	select {
	case r.wake <- struct{}{}:
	default: // it will already
	}
}

// Run attempts all erasures and deletions that are due. The erasures of a deleted merchant are done with its deletion.
func (r *Runner) Run(ctx context.Context) error {
	w, err := r.begin(ctx)
	if err != nil {
		return err
	}
	var order []store.MerchantID
	erasures := map[store.MerchantID][]store.Erasure{}
	for _, e := range w.erasures {
		if len(erasures[e.Merchant]) == 0 {
			order = append(order, e.Merchant)
		}
		erasures[e.Merchant] = append(erasures[e.Merchant], e)
	}
	var purged batch
	for _, d := range w.removals {
		if d.Kind != store.OfDeletion {
			continue
		}
		b := batch{erasures[d.Merchant], []store.Removal{d}}
		delete(erasures, d.Merchant)
		if w.now.Sub(d.At) < r.delay || !d.IsDue(w.now) {
			continue
		}
		if d.State == store.ErasurePurging || w.attempt("what is left of merchant "+string(d.Merchant), b, func() error { return r.engine.Drop(ctx, d.Merchant) }) {
			purged.add(b)
		}
	}
	for _, m := range order {
		var removing, purging []store.Erasure
		for _, e := range erasures[m] {
			switch {
			case !e.IsDue(w.now):
			case e.State == store.ErasurePurging:
				purging = append(purging, e)
			default:
				removing = append(removing, e)
			}
		}
		purged.add(batch{erasures: purging})
		if b := (batch{erasures: removing}); len(removing) > 0 && w.attempt("erasures at merchant "+string(m), b, func() error { return r.engine.EraseOf(ctx, m, removing) }) {
			purged.add(b)
		}
	}
	w.purge(purged)
	return w.end()
}

// Expire attempts to remove the events that are past the retention of their merchants: all merchants that do not keep events
// for ever. With again, it attempts only what has failed before.
func (r *Runner) Expire(ctx context.Context, merchants []store.MerchantID, again bool) error {
	w, err := r.begin(ctx)
	if err != nil {
		return err
	}
	tried := map[store.MerchantID]store.Removal{}
	for _, t := range w.removals {
		if t.Kind == store.OfRetention {
			tried[t.Merchant] = t
		}
	}
	var done, reclaimed []store.Removal
	for _, m := range merchants {
		t, known := tried[m]
		delete(tried, m)
		if !known {
			t = store.Removal{Kind: store.OfRetention, Merchant: m, At: w.now.UTC(), State: store.ErasureRemoving}
		}
		if !known && again || !t.IsDue(w.now) {
			continue
		}
		some := false
		if !w.attempt("the retention of merchant "+string(m), batch{removals: []store.Removal{t}}, func() (err error) {
			if before := r.engine.ExpiredBefore(m, w.now); before != math.MinInt64 {
				some, err = r.engine.ExpireOf(ctx, m, before)
			}
			return err
		}) {
			continue
		}
		if some || t.State == store.ErasurePurging {
			t.State = store.ErasurePurging
			reclaimed = append(reclaimed, t)
		} else if known {
			done = append(done, t)
		}
	}
	if len(reclaimed) > 0 && (r.Reclaim == nil || w.attempt("the space of events that are past the retention", batch{removals: reclaimed}, func() error { return r.Reclaim(ctx) })) {
		for _, t := range reclaimed {
			if t.Attempts > 0 {
				done = append(done, t)
			}
		}
	}
	for _, t := range tried { // the merchant is gone, or keeps its events for ever
		done = append(done, t)
	}
	w.store(batch{removals: done}, reached(store.ErasureDone))
	return w.end()
}

// round is one call of Run or Expire.
type round struct {
	*Runner
	ctx      context.Context
	now      time.Time // when it began
	erasures []store.Erasure
	removals []store.Removal

	attempts int
	failures int     // attempts that have failed
	errs     []error // the first maxErrors
}

// maxErrors is how many errors of a round are logged: all merchants may have the same one.
const maxErrors = 10

// begin begins a round.
func (r *Runner) begin(ctx context.Context) (w *round, err error) {
	w = &round{Runner: r, ctx: ctx}
	if w.erasures, w.removals, err = r.engine.Tasks(ctx); err != nil {
		return nil, err
	}
	r.failing.Store(r.metrics.set(w.erasures, w.removals))
	w.now, err = r.engine.Now(ctx)
	return w, err
}

// batch are removals that one attempt is for.
type batch struct {
	erasures []store.Erasure
	removals []store.Removal
}

func (b *batch) add(other batch) {
	b.erasures, b.removals = append(b.erasures, other.erasures...), append(b.removals, other.removals...)
}

// attempt does a step for some removals, and reports whether it has succeeded. If not, it notes that in them.
func (w *round) attempt(what string, b batch, step func() error) bool {
	if w.ctx.Err() != nil {
		return false
	}
	w.attempts++
	err := step()
	if err != nil && w.ctx.Err() == nil { // else the engine closes
		w.fail(what, err)
		if errors.Is(err, ErrWaits) {
			return false
		}
		w.failures++
		w.store(b, func(_ *store.ErasureState, t *store.Tries, now time.Time) { *t = t.Failed(now, err) })
	}
	return err == nil
}

// purge ends removals whose events no answer has any more.
func (w *round) purge(b batch) {
	if len(b.erasures)+len(b.removals) == 0 || !w.store(batch{erasures: b.erasures}, reached(store.ErasurePurging)) {
		return
	}
	for i := range b.removals {
		b.removals[i].State = store.ErasurePurging
	}
	if w.attempt("the bytes of removed events", b, func() error { return w.engine.Purge(w.ctx) }) {
		w.store(b, reached(store.ErasureDone))
	}
}

// reached is the change of a removal by an attempt that has succeeded.
func reached(state store.ErasureState) func(*store.ErasureState, *store.Tries, time.Time) {
	return func(s *store.ErasureState, t *store.Tries, _ time.Time) { *s, t.LastError = state, "" }
}

// store changes removals, and reports whether that has succeeded.
func (w *round) store(b batch, change func(*store.ErasureState, *store.Tries, time.Time)) bool {
	if len(b.erasures)+len(b.removals) == 0 {
		return true
	}
	err := func() error {
		now, err := w.engine.Now(w.ctx)
		if err != nil {
			return err
		}
		ids := make([]store.ErasureID, len(b.erasures))
		for i, e := range b.erasures {
			ids[i] = e.ID
		}
		if err := w.engine.UpdateErasures(w.ctx, ids, func(e *store.Erasure) []store.IdentityKey {
			if change(&e.State, &e.Tries, now); e.State == store.ErasureDone {
				e.FinishedAt = now.UTC()
			}
			return nil
		}); err != nil || len(b.removals) == 0 {
			return err
		}
		changed := slices.Clone(b.removals)
		for i := range changed {
			change(&changed[i].State, &changed[i].Tries, now)
		}
		return w.engine.SaveRemovals(w.ctx, changed)
	}()
	if err != nil {
		w.fail("the progress of a removal", err)
	}
	return err == nil
}

func (w *round) fail(what string, err error) {
	if len(w.errs) < maxErrors {
		w.errs = append(w.errs, fmt.Errorf("%s: %w", what, err))
	}
}

// end returns what has failed.
func (w *round) end() error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if w.attempts == 0 {
		return errors.Join(w.errs...)
	}
	w.metrics.failures.Add(float64(w.failures))
	erasures, removals, err := w.engine.Tasks(w.ctx)
	if err == nil {
		w.failing.Store(w.metrics.set(erasures, removals))
	}
	return errors.Join(append(w.errs, err)...)
}
