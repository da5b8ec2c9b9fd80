// Package move moves all data from one engine to another one, while the first one goes on serving. It knows neither: each engine
// gives its data as a Source, and takes it as a Target, in the words of this package.
//
// Both engines number events by the time of their commit in µs and a place in it (codec.Position). A move keeps these positions. So
// the ids of events and the cursors of feeds stay good.
//
// # The phases
//
//  1. The target must be empty, or have a part of the same source: a move that was cut off. That part is compared with the source.
//     If the source does not have all of it any more, the move begins again: events were erased, or a crash has taken back what its
//     standbys did not have.
//  2. Events are copied in the order of receipt, in portions. The target commits each portion together with how far it has got.
//     The target indexes them all at once. Then links, remembered event_ids and the audit log are copied.
//  3. Events that came in meanwhile are copied, again and again, until that takes no time. All are compared.
//  4. The source is frozen: it refuses events and changes. What is new since phase 3 is copied and compared, and the control data. If
//     that takes longer than freezeFor, the source goes on, and the move fails.
//  5. The target is marked as complete, then the source as moved. Now the target can be opened.
//
// From the beginning to the end, the source removes no events: erasures and deletions wait, and are done by the target.
//
// When a move fails or is cut off before the source is marked as moved, the source goes on serving. After that, Target.Finish does the rest.
//
//	move.go     Run: the phases
//	engine.go   Source and Target, and what they exchange
//	digest.go   counts and checksums
package move

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"mtagd/store"
)

// Options are what a move needs beside its engines.
type Options struct {
	Log *slog.Logger

	// Progress is called now and then with what is being done, and how many events are done; 0: that is not about events.
	Progress func(phase Phase, events uint64)

	// For tests. 0: the default.
	Portion   int           // events that are written together, about
	FreezeFor time.Duration // how long the source may be frozen
}

// Phase is what a move is doing, for people.
type Phase string

// The phases.
const (
	Comparing Phase = "compare"
	Copying   Phase = "copy"
	Indexing  Phase = "index"
	Links     Phase = "links"
	Switching Phase = "switch"
)

// Result is what was moved.
type Result struct {
	Events    uint64        `json:"events"`
	Links     uint64        `json:"links"`
	EventIDs  uint64        `json:"eventIds"` // that are remembered
	Partners  int           `json:"partners"`
	Merchants int           `json:"merchants"`
	Tags      int           `json:"tags"`
	Audit     uint64        `json:"auditEntries"`
	Frozen    time.Duration `json:"-"` // how long the source refused events
}

// shortPass is how long the last copy before the switch may have taken: what came in meanwhile takes no longer.
const shortPass = 500 * time.Millisecond

// maxPasses bounds the copies before the switch. A target that is slower than the events come in never catches up.
const maxPasses = 100

// mover is one run.
type mover struct {
	src Source
	dst Target
	opt Options

	at     uint64 // events up to this receipt are in the target
	copied uint64
	events digests  // of the source's events that were compared
	upTo   uint64   // the receipt up to which events were compared
	moment uint64   // of the source, up to which links were copied
	known  []uint64 // sorted hashes of the keys that the source has passed last, and will pass again
	result Result
}

// Run moves everything from src to dst. After an error the source goes on serving, except after an *Unfinished.
func Run(ctx context.Context, src Source, dst Target, opt Options) (Result, error) {
	m := &mover{src: src, dst: dst, opt: opt, events: digests{}}
	held, release, err := src.Hold(ctx) // first: another move of the source may be at its end
	if err != nil {
		return Result{}, err
	}
	defer release()
	if err := m.copyAll(held); err != nil {
		return Result{}, because(held, err)
	}
	return m.result, nil
}

// copyAll makes the whole move. The source removes no events meanwhile.
func (m *mover) copyAll(ctx context.Context) error {
	id, err := m.src.ID(ctx)
	if err != nil {
		return err
	}
	if m.at, err = m.dst.Begin(ctx, id); err != nil {
		return err
	}
	if err := m.copyMost(ctx); err != nil {
		return err
	}
	return m.switchOver(ctx)
}

// Unfinished is the error of a move whose source is marked as moved, while the target is not open yet. Finish opens it.
type Unfinished struct{ Err error }

func (e *Unfinished) Error() string {
	return "everything is copied, but the new store cannot be opened yet, and the old one is closed: run the same command again, and start the service with the new one: " + e.Err.Error()
}

func (e *Unfinished) Unwrap() error { return e.Err }

// copyMost does what takes long, beside the running source.
func (m *mover) copyMost(ctx context.Context) error {
	if err := m.compareCopied(ctx); errors.Is(err, errDiffers) {
		m.opt.Log.Info("the source does not have all of that any more: the copy begins again", "why", err)
		m.at, m.upTo, m.events = 0, 0, digests{}
		if err := m.dst.Clear(ctx); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if err := m.catchUp(ctx); err != nil {
		return err
	}
	m.opt.Progress(Indexing, 0)
	if err := m.dst.Index(ctx); err != nil {
		return fmt.Errorf("index events: %w", err)
	}
	if err := m.copyKeys(ctx, 0, m.passesAgain(false)); err != nil {
		return err
	}
	if err := m.copyAudit(ctx); err != nil {
		return err
	}
	if err := m.compareEvents(ctx, m.at); err != nil {
		return err
	}
	// Copy what has changed meanwhile, so that little is left for the time when the source is frozen.
	if err := m.copyKeys(ctx, m.moment, m.passesAgain(true)); err != nil {
		return err
	}
	return m.catchUp(ctx)
}

// catchUp copies events until that takes no time.
func (m *mover) catchUp(ctx context.Context) error {
	for range maxPasses {
		began := time.Now()
		if err := m.copyEvents(ctx); err != nil {
			return err
		}
		if time.Since(began) < shortPass {
			return nil
		}
	}
	return errors.New("events come in faster than they can be copied: try again when there are fewer")
}

const (
	batchEvents = 20_000
	batchBytes  = 8 << 20
)

// copyEvents copies the events that the target does not have yet. While the target writes a portion, the next one is read.
func (m *mover) copyEvents(ctx context.Context) error {
	last, err := m.src.Last(ctx)
	if err != nil || last <= m.at {
		return err
	}
	batches := make(chan *Batch, 1)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(batches)
		b := &Batch{}
		send := func(upTo uint64) error {
			b.UpTo = upTo
			select {
			case batches <- b:
				b = &Batch{}
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err := m.src.Events(ctx, m.at, last, func(e *Event) error {
			// A portion ends between two commits of the source: so its end is one number.
			if n := len(b.Events); n > 0 && (n >= cmp.Or(m.opt.Portion, batchEvents) || len(b.bytes) >= batchBytes) && b.Events[n-1].At.Seq != e.At.Seq {
				if err := send(b.Events[n-1].At.Seq); err != nil {
					return err
				}
			}
			b.add(e)
			return nil
		}); err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		return send(last)
	})
	g.Go(func() error {
		for b := range batches {
			if err := m.dst.Add(ctx, b); err != nil {
				return fmt.Errorf("write events: %w", err)
			}
			m.at = b.UpTo
			m.copied += uint64(len(b.Events))
			m.opt.Progress(Copying, m.copied)
		}
		return nil
	})
	return g.Wait()
}

// copyKeys copies the keys, which are links and remembered event_ids, that were written after a moment of the source, and keeps the new
// moment. A source may pass keys again that have not changed. copyKeys knows these by their hashes, and does not write them again.
// If two hashes were equal by chance, compareRest would find the difference. again says which keys the source will pass again: only
// their hashes are kept, because those of all keys of a large store would be gigabytes.
func (m *mover) copyKeys(ctx context.Context, since uint64, again func(*Key) bool) error {
	const portion = 20_000
	var keys []Key
	done := uint64(0)
	write := func() error {
		if err := m.dst.AddKeys(ctx, keys); err != nil {
			return fmt.Errorf("write links: %w", err)
		}
		done += uint64(len(keys))
		keys = keys[:0]
		m.opt.Progress(Links, done)
		return nil
	}
	var passed []uint64
	moment, err := m.src.Keys(ctx, since, func(k *Key) error {
		keep := again(k)
		if keep || len(m.known) > 0 {
			hash := k.hash()
			if keep {
				passed = append(passed, hash)
			}
			if _, known := slices.BinarySearch(m.known, hash); known {
				return nil
			}
		}
		keys = append(keys, *k)
		if len(keys) < portion {
			return nil
		}
		return write()
	})
	if err != nil {
		return fmt.Errorf("read links: %w", err)
	}
	slices.Sort(passed)
	m.moment, m.known = moment, passed
	return write()
}

// passesAgain returns a function that reports whether the next call of copyKeys gets a key again, even if it has not changed: that is so
// for links, and for the event_ids of the last minutes. recent says that this call gets no older event_ids than these.
func (m *mover) passesAgain(recent bool) func(*Key) bool {
	all := m.src.PassesAllLinks()
	return func(k *Key) bool { return all && (recent || k.IsLink()) }
}

// copyAudit copies the entries of the audit log that the target does not have yet.
func (m *mover) copyAudit(ctx context.Context) error {
	const portion = 1000
	last, err := m.dst.LastAudit(ctx)
	if err != nil {
		return err
	}
	var entries []store.AuditEntry
	write := func() error {
		err := m.dst.AddAudit(ctx, entries)
		entries = entries[:0]
		return err
	}
	if err := m.src.Audit(ctx, last, func(e *store.AuditEntry) error {
		entries = append(entries, *e)
		if len(entries) < portion {
			return nil
		}
		return write()
	}); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return write()
}

// switchOver freezes the source, copies and compares the rest, and marks both.
func (m *mover) switchOver(ctx context.Context) error {
	m.opt.Progress(Switching, 0)
	began := time.Now()
	bounded, cancelBound := context.WithTimeoutCause(ctx, cmp.Or(m.opt.FreezeFor, freezeFor), errFrozenTooLong)
	defer cancelBound()
	frozen, err := m.src.Freeze(bounded)
	if err != nil {
		return fmt.Errorf("freeze the source: %w", because(bounded, err))
	}
	defer frozen.Release()
	// A target that hangs may not notice that the context ends.
	stop := context.AfterFunc(bounded, frozen.Release)
	defer stop()
	if err := m.copyRest(bounded); err != nil {
		return because(bounded, err)
	}
	target, err := m.dst.Ready(bounded, m.at)
	if err != nil {
		return because(bounded, err)
	}
	if !stop() {
		return context.Cause(bounded)
	}
	// From here on, the source may be marked: the end of ctx must not come in between.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishFor)
	defer cancel()
	if err := frozen.Commit(ctx, target); err != nil {
		return fmt.Errorf("mark the source as moved: %w", err)
	}
	for {
		err := m.dst.Finish(ctx)
		if err == nil {
			break
		}
		m.opt.Log.Error("everything is copied, but the target cannot be opened: it is tried again", "error", err)
		select {
		case <-ctx.Done():
			return &Unfinished{err}
		case <-time.After(time.Second):
		}
	}
	m.result.Frozen = time.Since(began)
	return nil
}

// freezeFor is how long the source may be frozen. Then the move is given up.
const freezeFor = 30 * time.Second

var errFrozenTooLong = errors.New("the switch has taken too long, and was given up: try again when the target answers faster, or when fewer events come in")

// because returns an error with the reason why its context has ended, if it has.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// finishFor is how long the target may not be reached at the very end, or not answer.
const finishFor = 30 * time.Second

// copyRest copies and compares what is left.
func (m *mover) copyRest(ctx context.Context) error {
	if err := m.copyEvents(ctx); err != nil {
		return err
	}
	if err := m.copyKeys(ctx, m.moment, func(*Key) bool { return false }); err != nil {
		return err
	}
	if err := m.copyAudit(ctx); err != nil {
		return err
	}
	control, err := m.src.Control(ctx)
	if err != nil {
		return fmt.Errorf("control data: %w", err)
	}
	if err := m.dst.SetControl(ctx, control); err != nil {
		return fmt.Errorf("control data: %w", err)
	}
	if err := m.compareEvents(ctx, m.at); err != nil {
		return err
	}
	if err := m.compareCounts(ctx, control); err != nil {
		return err
	}
	if err := m.compareRest(ctx, control); err != nil {
		return err
	}
	m.result.Events, m.result.Partners, m.result.Merchants, m.result.Tags = m.events.sum().N, len(control.Partners), len(control.Merchants), len(control.Tags)
	return nil
}
