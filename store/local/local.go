// Package local is the embedded engine, for one process and one data directory. It connects three packages that do not
// import each other:
//
//	DIR/control.db  control/  partners, keys, merchants, tags
//	DIR/events/     journal/  events, identity links, remembered event_ids
//	DIR/index.db    rank/     the index of the events; rebuilt from the journal when it is missing
//	DIR/set-aside/  journal/  copies of damaged files of events/, from before they were corrected
//
// They share codec (the byte forms of ids and values), boltfile (bbolt files with a format version) and space (of the
// disk). Each package comment describes the format of its files.
//
// # Writing
//
// Record passes marks to the journal, which commits them in groups. When a commit is on disk, the journal passes its
// events to the index and Record returns. The index applies them a moment later, in the same order.
//
// # Reading
//
// A listing waits until the index has every event that was committed before the call. Then it asks the index for the
// positions of the page's events, and the journal for the events at these positions.
//
// # On a full disk
//
// The engine opens, reads and closes. Record and Resolve refuse what they would have to write, and a change of the control
// data fails with store.KindUnavailable. Once there is space again, everything goes on by itself.
//
//	local.go    opens, connects and closes the three parts
//	listing.go  Events: one page of a merchant's events
//	source.go   what a backup reads (the package backup)
//	restore.go  a new data directory from a backup
package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"mtagd/store"
	"mtagd/store/local/codec"
	"mtagd/store/local/control"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
)

// MinFree is how many bytes of the disk must be free: events are refused before less is.
const MinFree = journal.MinFree

// Options are an engine's inputs besides its directory.
type Options struct {
	Log *slog.Logger     // nil: slog.Default
	Now func() time.Time // nil: time.Now

	maxSeries int // for tests (rank.LimitSeries); 0: the default
}

func (o Options) withDefaults() Options {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return o
}

// engine implements store.Engine.
type engine struct {
	*control.Data
	journal *journal.Journal
	index   *rank.Index
}

var _ store.Engine = (*engine)(nil)

// Open opens or creates the engine in dir. It fails with store.ErrInUse when another process has it open.
func Open(dir string, opt Options) (store.Engine, error) {
	opt = opt.withDefaults()
	data, err := OpenControl(dir, opt)
	if err != nil {
		return nil, err
	}
	e := &engine{Data: data}
	if err := e.openEvents(dir, opt); err != nil {
		return nil, errors.Join(err, data.Close())
	}
	return e, nil
}

// OpenControl opens or creates only the control data in dir, for operator commands while no server runs. It fails with
// store.ErrInUse when another process has it open.
func OpenControl(dir string, opt Options) (*control.Data, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := checkParts(dir); err != nil {
		return nil, err
	}
	if err := checkFinished(dir); err != nil {
		return nil, err
	}
	return control.Open(dir, opt.withDefaults().Now)
}

// checkParts refuses a directory that has events, but no control.db or an empty one. A new one would be without the
// merchants whose events these are.
func checkParts(dir string) error {
	info, err := os.Stat(filepath.Join(dir, "control.db"))
	if err == nil && info.Size() > 0 {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, name := range []string{"events", "index.db"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return fmt.Errorf("%s is missing or empty, but %s is there: the partners, merchants and tags are missing. "+
				"Nothing was changed. Restore control.db from the backup that the events are from",
				filepath.Join(dir, "control.db"), filepath.Join(dir, name))
		}
	}
	return nil
}

// openEvents opens the journal and the index, and starts them.
func (e *engine) openEvents(dir string, opt Options) (err error) {
	if e.journal, err = journal.Open(filepath.Join(dir, "events"), journal.Options{Log: opt.Log, Now: opt.Now}); err != nil {
		return err
	}
	if e.index, err = rank.Open(filepath.Join(dir, "index.db"), MinFree, opt.Log); err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", dir, err), e.journal.Close())
	}
	if opt.maxSeries > 0 {
		e.index.LimitSeries(opt.maxSeries)
	}
	err = e.catchUp(opt.Log)
	if err == nil {
		err = journal.SyncPath(dir) // the names of new files
	}
	if err == nil {
		err = e.journal.Start(e.indexReady, e.index.Push)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", dir, err), e.index.Close(), e.journal.Close())
	}
	e.index.Start()
	return nil
}

// catchUp replays the events that the index does not cover. When the index is of an older version, these are all events: it
// is emptied first. A kill loses nothing, as the next start goes on where the index ends.
func (e *engine) catchUp(log *slog.Logger) error {
	covered := e.index.Covered()
	if covered > 0 {
		// The index only ever got chunks that the journal had on disk. If the journal does not have this one, the two are
		// from different times.
		found, err := e.journal.HasChunk(covered)
		if err != nil {
			return err
		}
		if !found {
			return errors.New("index.db covers events that are missing in events/: part of events/ is lost, or events/ is older " +
				"than index.db. Nothing was changed. Copy the whole directory before anything else. Then restore events/ from a " +
				"newer backup. Only if events/ is as new as it can be, such as after restoring the newest backup, move index.db " +
				"out of the directory: it is rebuilt from events/, without the events that are missing")
		}
	}
	if e.index.Outdated() {
		log.Info("index.db is of an older version: it is rebuilt from events/")
		if err := e.index.Reset(); err != nil {
			return err
		}
		covered = 0
	}
	last, err := e.journal.LastChunk()
	if err != nil {
		return err
	}
	p := replayProgress{log: log, last: last, next: time.Now().Add(progressInterval)}
	return e.journal.Since(covered, func(events []codec.Event, seq uint64) error {
		p.report(seq)
		return e.index.Replay(events, seq)
	})
}

// progressInterval is how often a replay logs its progress. Most replays take less.
const progressInterval = 5 * time.Second

// replayProgress logs how far a replay is.
type replayProgress struct {
	log         *slog.Logger
	first, last uint64 // the chunks to replay; first is 0 until its report
	next        time.Time
}

// report is called with each chunk. Chunk numbers are times (µs since 1970), so the share is that of the time from the first
// chunk on: the chunk that the index covers may be much older, and an emptied index covers none.
func (p *replayProgress) report(seq uint64) {
	if p.first == 0 {
		p.first = seq
	}
	if now := time.Now(); now.After(p.next) {
		p.next = now.Add(progressInterval)
		p.log.Info("index.db is catching up with events/", "percent", 100*(seq-p.first)/max(1, p.last-p.first))
	}
}

// indexReady returns nil while the index takes events. The journal accepts no marks while it returns an error.
func (e *engine) indexReady() error {
	if e.index.Failure() != nil {
		return store.Unavailable("the event index failed")
	}
	return nil
}

// Record implements store.Events.
func (e *engine) Record(ctx context.Context, marks []store.Mark) error {
	return e.journal.Record(ctx, marks)
}

// Resolve implements store.Events.
func (e *engine) Resolve(ctx context.Context, merchant store.MerchantID, id store.Identity) (store.MUID, error) {
	return e.journal.Resolve(ctx, merchant, id)
}

// Ready implements store.Engine.
func (e *engine) Ready() error { return e.journal.Ready() }

// FreeSpace implements store.Engine.
func (e *engine) FreeSpace() uint64 { return e.journal.FreeSpace() }

// Close implements store.Engine.
func (e *engine) Close() error {
	// First, so that the index gets the last commits before it closes.
	if err := e.journal.Drain(); err != nil {
		return errors.Join(err, e.Data.Close())
	}
	return errors.Join(e.index.Close(), e.journal.Close(), e.Data.Close())
}
