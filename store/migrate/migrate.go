// Package migrate fills an empty store from another one, and compares the two. It knows neither engine: each gives its data
// as a Source, and takes it as a Target, in the words of this package.
//
// Both engines number events by the time of their commit in µs and a place in it (store.Position). These positions stay. So
// the ids of events and the cursors of feeds stay good.
//
// Import copies a source that nobody changes. Switch copies a source that serves, and lets the target take over:
//
//  1. Events are copied, then links and remembered event_ids, then what came in meanwhile, again and again,
//     until that takes no time.
//  2. The source is frozen: it refuses events and changes. The rest is copied as by Import, and compared. If that takes
//     longer than freezeFor, the source goes on, and the switch fails.
//  3. The target is marked as complete, then the source as moved. Now the target can be opened.
//
// Until the source is marked as moved, it has the whole truth, and goes on serving when a switch fails or is killed.
// Meanwhile nobody can open the target; the next Begin empties it. After the mark, Successor.Finish does the rest.
//
//	migrate.go   Import and Switch
//	data.go      Source and Target, and what they exchange
//	compare.go   counts and checksums
package migrate

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"mtagd/store"
)

// Options are what is needed beside the two stores.
type Options struct {
	Log *slog.Logger

	// Progress is called now and then with what is being done, and how many things are done; 0: they are not counted.
	Progress func(phase Phase, done uint64)

	// For tests. 0: the default.
	Portion   int           // events that are written together
	FreezeFor time.Duration // how long the source may be frozen
}

// Phase is what is being done, for people.
type Phase string

// The phases.
const (
	Copying   Phase = "copy"
	Indexing  Phase = "index"
	Links     Phase = "links"
	Comparing Phase = "compare"
	Switching Phase = "switch"
)

// Result is what was copied.
type Result struct {
	Events    uint64  `json:"events"`
	Links     uint64  `json:"links"`
	EventIDs  uint64  `json:"eventIds"` // that are remembered
	Partners  int     `json:"partners"`
	Merchants int     `json:"merchants"`
	Tags      int     `json:"tags"`
	Audit     uint64  `json:"auditEntries"`
	Refused   float64 `json:"secondsRefused"` // how long the source refused events
}

// Import fills a new target from a source that nobody changes, and compares them.
func Import(ctx context.Context, src Source, dst Target, opt Options) (Result, error) {
	c := newCopier(src, dst, opt)
	err := c.copyRest(ctx)
	return c.result, because(ctx, err)
}

// Switch fills a target from a source that serves, and lets the target take over. After an error the source goes on serving,
// except after an *Unfinished.
func Switch(ctx context.Context, src Live, dst Successor, opt Options) (Result, error) {
	c := newCopier(src, dst, opt)
	release, err := src.Hold(ctx) // first: what it waits for must not be copied
	if err != nil {
		return Result{}, err
	}
	defer release()
	if err := dst.BeginFilling(ctx); err != nil {
		return Result{}, err
	}
	if err := c.copyAhead(ctx); err != nil {
		return Result{}, err
	}
	err = c.switchOver(ctx, src, dst)
	return c.result, err
}

// Unfinished is the error of a switch whose source is marked as moved, while the target is not open yet. Finish opens it.
type Unfinished struct{ Err error }

func (e *Unfinished) Error() string {
	return "everything is copied, but the new store cannot be opened yet, and the old one is closed: run the same command again, and start the service with the new one: " + e.Err.Error()
}

func (e *Unfinished) Unwrap() error { return e.Err }

// copier is one run.
type copier struct {
	src Source
	dst Target
	opt Options

	at       uint64 // events up to this receipt are in the target
	moment   uint64 // of the source, up to which its keys were copied
	audited  store.AuditID
	events   digests // of the events that were copied
	read     digests // of those that were read again in the target
	readUpTo uint64
	result   Result
}

func newCopier(src Source, dst Target, opt Options) *copier {
	return &copier{src: src, dst: dst, opt: opt, events: digests{}, read: digests{}}
}

// shortPass is how long the last copy before the switch may have taken: what came in meanwhile takes no longer.
const shortPass = 500 * time.Millisecond

// maxPasses bounds the copies before the switch. A target that is slower than the events come in never catches up.
const maxPasses = 100

// copyAhead does what takes long, beside the running source, so that little is left for the time when it is frozen.
func (c *copier) copyAhead(ctx context.Context) error {
	if err := c.catchUp(ctx); err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{c.index, c.copyKeys, c.copyAudit, c.readAgain, c.copyKeys, c.catchUp} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// catchUp copies events until that takes no time.
func (c *copier) catchUp(ctx context.Context) error {
	for range maxPasses {
		began := time.Now()
		if err := c.copyEvents(ctx); err != nil {
			return err
		}
		if time.Since(began) < shortPass {
			return nil
		}
	}
	return errors.New("events come in faster than they can be copied: try again when there are fewer")
}

func (c *copier) index(ctx context.Context) error {
	c.opt.Progress(Indexing, 0)
	if err := c.dst.Index(ctx, c.at); err != nil {
		return fmt.Errorf("index events: %w", err)
	}
	return nil
}

// copyRest copies what the target does not have, and compares everything. Nobody changes the source meanwhile.
func (c *copier) copyRest(ctx context.Context) error {
	for _, step := range []func(context.Context) error{c.copyEvents, c.copyKeys, c.copyAudit} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	control, err := c.src.Control(ctx)
	if err == nil {
		control.dropOrphans()
		err = c.dst.SetControl(ctx, control)
	}
	if err != nil {
		return fmt.Errorf("control data: %w", err)
	}
	if err := c.index(ctx); err != nil {
		return err
	}
	if err := c.readAgain(ctx); err != nil {
		return err
	}
	return c.compare(ctx, control)
}

// Events are written in portions. A portion ends with this number of events, or bytes of their bodies.
const (
	portionEvents = 20_000
	portionBytes  = 8 << 20
)

// copyEvents copies the events that the target does not have yet.
func (c *copier) copyEvents(ctx context.Context) error {
	latest, err := c.src.Latest(ctx)
	if err != nil {
		return err
	}
	at, _ := store.ParseCursor(latest) // which the source has made
	last := at.Seq
	if last <= c.at {
		return nil
	}
	copied, size := c.events.n(), 0
	var text []byte
	write := portions(cmp.Or(c.opt.Portion, portionEvents), func(events []Event) error {
		if err := c.dst.Add(ctx, Portion{Events: events}); err != nil {
			return fmt.Errorf("write events: %w", err)
		}
		copied, size = copied+uint64(len(events)), 0
		c.opt.Progress(Copying, copied)
		return nil
	})
	if err := c.src.Events(ctx, c.at, last, func(e *Event) error {
		e.Client = nil
		text = e.append(text[:0])
		c.events.add(e.Merchant, text)
		own := *e
		own.MUID, own.Raw, own.Details = bytes.Clone(e.MUID), bytes.Clone(e.Raw), e.Details.Clone()
		if size += len(own.Raw); size < portionBytes {
			return write(&own)
		}
		return cmp.Or(write(&own), write(nil))
	}); err != nil {
		return fmt.Errorf("copy events: %w", err)
	}
	c.at = last
	return write(nil)
}

// copyKeys copies the links and remembered event_ids that were written since the last call.
func (c *copier) copyKeys(ctx context.Context) error {
	done := uint64(0)
	write := portions(20_000, func(keys []Key) error {
		if err := c.dst.Add(ctx, Portion{Keys: keys}); err != nil {
			return fmt.Errorf("write links: %w", err)
		}
		done += uint64(len(keys))
		c.opt.Progress(Links, done)
		return nil
	})
	moment, err := c.src.Keys(ctx, c.moment, func(k *Key) error { return write(k) })
	if err != nil {
		return fmt.Errorf("read links: %w", err)
	}
	c.moment = moment
	return write(nil)
}

// copyAudit copies the entries of the audit log that were made since the last call.
func (c *copier) copyAudit(ctx context.Context) error {
	write := portions(1000, func(entries []store.AuditEntry) error { return c.dst.Add(ctx, Portion{Audit: entries}) })
	if err := c.src.Audit(ctx, c.audited, func(e *store.AuditEntry) error {
		c.audited = e.ID
		return write(e)
	}); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return write(nil)
}

// portions returns a function that collects things, and passes n of them at once to write; with nil it passes the rest.
func portions[T any](n int, write func([]T) error) func(*T) error {
	var all []T
	return func(one *T) error {
		if one != nil {
			all = append(all, *one)
		}
		if len(all) == 0 || one != nil && len(all) < n {
			return nil
		}
		err := write(all)
		all = all[:0]
		return err
	}
}

// freezeFor is how long the source may be frozen. Then the switch is given up.
const freezeFor = 30 * time.Second

var errFrozenTooLong = errors.New("the switch has taken too long, and was given up: try again when the target answers faster, or when fewer events come in")

// because returns an error with the reason why its context has ended, if it has.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %w", cause, err)
	}
	return err
}

// finishFor is how long the target may not be reached at the very end, or not answer.
const finishFor = 30 * time.Second

// switchOver freezes the source, copies and compares the rest, and marks both.
func (c *copier) switchOver(ctx context.Context, src Live, dst Successor) error {
	c.opt.Progress(Switching, 0)
	began := time.Now()
	bounded, cancelBound := context.WithTimeoutCause(ctx, cmp.Or(c.opt.FreezeFor, freezeFor), errFrozenTooLong)
	defer cancelBound()
	frozen, err := src.Freeze(bounded)
	if err != nil {
		return fmt.Errorf("freeze the source: %w", because(bounded, err))
	}
	defer frozen.Thaw()
	// A target that hangs may not notice that the context ends.
	stop := context.AfterFunc(bounded, frozen.Thaw)
	defer stop()
	if err := c.copyRest(bounded); err != nil {
		return because(bounded, err)
	}
	target, err := dst.Ready(bounded, c.at)
	if err != nil {
		return because(bounded, err)
	}
	if !stop() {
		return context.Cause(bounded)
	}
	// From here on, the source may be marked: the end of ctx must not come in between.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishFor)
	defer cancel()
	if err := frozen.MarkMoved(ctx, target); err != nil {
		return fmt.Errorf("mark the source as moved: %w", err)
	}
	for {
		err := dst.Finish(ctx)
		if err == nil {
			c.result.Refused = time.Since(began).Seconds()
			return nil
		}
		c.opt.Log.Error("everything is copied, but the target cannot be opened: it is tried again", "error", err)
		if store.Sleep(ctx, time.Second) != nil {
			return &Unfinished{err}
		}
	}
}
