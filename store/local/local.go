// Package local is the embedded engine, for one process and one data directory. It connects four packages:
//
//	DIR/control.db      control/  partners, keys, merchants, tags; DIR/control.copy is the same once more
//	DIR/events/         journal/  a log of new events; identity links and remembered event_ids
//	DIR/archive/        archive/  older events, packed by merchant
//	DIR/index.db        rank/     the index of the events; rebuilt from the other two when it is missing
//	DIR/damaged.jsonl   the damaged chunks and blocks that were found
//	DIR/expiring        whose expired events are being removed (retention.go)
//	DIR/generation      which files belong together (generation.go)
//	DIR/relink          lost links and event_ids are being written again, and where their keys are (relink.go)
//	DIR/unfinished      a restore, a repair or an import is filling the directory
//	DIR/index.db.new    an index that is being rebuilt; the next start removes it
//	DIR/archive.part    a copy of what can be read of a damaged archive; the next start removes it
//
// They share log (a write-ahead log of bytes), badgerdb (Badger behind a log), codec (the byte forms of ids and
// values), boltfile (bbolt files with a format version), durable (files that a power cut does not leave half written),
// crc (a wrong bit) and space (of the disk). Each package comment describes the format of its files.
//
// # Writing
//
// Record passes marks to the journal, which appends them to its log in groups. When a group is on disk, the journal
// passes its events to the index and Record returns. The index applies them a moment later, in the same order.
//
// In the background, the archiver moves the oldest events from the journal to the archive. Events keep their positions,
// so the index does not change. The archive has all events up to its boundary, which is the number of a chunk, and the
// journal has those after it.
//
// # Reading
//
// A listing waits until the index has every event that was committed before the call. Then it asks the index for the
// positions of the page's events, and the archive and the journal for the events at these positions.
//
// The feed reads blocks of the archive and then the journal's chunks in their order, without the index. For the chunks since
// the start, the journal remembers in memory which merchants have events in them: a reader that follows a small merchant's
// feed skips most other chunks.
//
// # On a full disk
//
// The engine opens, reads and closes. Record and Resolve refuse what they would have to write, and a change of the control
// data fails with store.KindUnavailable. Once there is space again, everything goes on by itself.
//
// # Damage
//
// If a record of the log or a block of the archive cannot be read, only its own events are lost: they are noted in
// damaged.jsonl and in the log, and removed from the index. So pages and totals have only events that can be served. Of a
// damaged table of the archive, the engine copies what can be read (healer.go).
//
// The index counts events independently of the archive. Personal data and erasures compare what they read with it, and
// so does verify (complete.go). A feed or an export sees that it has all of the archive's blocks of its range (package
// archive). The first answer that finds events missing fails, and the events are noted.
//
// Damage of the index costs no events: the engine rebuilds the index from the archive and the journal by itself.
//
// # Who knows whom
//
// Each of these knows only those before it. None knows the engine, which opens, connects and closes them.
//
//	stored      the events in the journal and the archive, and what damage has cost: stored.go, note.go, damage.go
//	liveIndex   the index, which it fills and rebuilds: rebuild.go, catchup.go
//	reader      listings and sums (listing.go), the feed (feed.go), whether an answer is complete (complete.go), a check of
//	            all data (verify.go, compare.go); watch.go wakes who waits for events
//	archiver    moves events from the journal to the archive
//	remover     removes events of persons and of deleted merchants (erase.go), and those past the retention (retention.go)
//	people      what belongs to a person: person.go
//	healer      replaces damaged tables (healer.go), and rewrites lost links and event_ids (relink.go)
//
// Besides, generation.go notices files older than the others, source.go is for backups, migrate.go for a move to
// another engine, and restore.go, repair.go and import.go fill a new data directory (fill.go).
package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"mtagd/store"
	"mtagd/store/groupcommit"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/control"
	"mtagd/store/local/durable"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
	"mtagd/store/watch"
)

// engine implements store.Engine.
type engine struct {
	*control.Data
	watch.Watchers
	*groupcommit.Recorder // the journal's
	*reader
	archiver   *archiver
	background *background
	remover    *remover
	healer     *healer
	close      context.CancelFunc // ends opened
	running    sync.WaitGroup     // remover, healer, and KeepTidy
}

var _ store.Engine = (*engine)(nil)

// Formats says which layouts of a data directory this program reads.
const Formats = "control 2 and " + control.Format + ", journal " + journal.Format + ", index " + rank.Format + ", archive " + archive.Format

// Open opens or creates the engine in dir. It fails with store.ErrInUse when another process has it open.
func Open(dir string, opt Options) (store.Engine, error) {
	opt = opt.withDefaults()
	data, parts, err := openControl(dir, opt)
	if err != nil {
		return nil, err
	}
	s := &stored{dir: dir, log: opt.Log, shorts: newShorts(), turns: newTurns(), changed: map[store.MerchantKey]uint64{}, removed: map[store.MerchantKey]uint64{},
		expiring: readExpiring(dir, opt.Log)}
	e := &engine{Data: data}
	e.OwnerOf = data.Directory().Owner
	s.opened, e.close = context.WithCancel(context.Background())
	x := &liveIndex{stored: s, parts: parts, maxSeries: opt.MaxSeries, registerer: opt.Metrics}
	e.background = newBackground(s.opened, opt.ArchiveRun > 0)
	e.reader = &reader{stored: s, control: data, index: x, background: e.background, watchers: &watchers{Watchers: &e.Watchers}, now: opt.Now}
	e.archiver = newArchiver(x, e.background, opt)
	e.remover = newRemover(data.Data, e.archiver, opt)
	e.healer = &healer{stored: s, control: data, reader: e.reader, archiver: e.archiver, remover: e.remover, now: opt.Now}
	data.Removing, data.People = e.remover.runner.Wake, people{e.reader, e.remover}
	if opt.Retention != 0 {
		if err := data.SetDefaultRetention(e.opened, opt.Retention); err != nil {
			return nil, errors.Join(err, data.Close())
		}
	}
	if err := upgradeFormer(e.opened, dir, opt.Log); err != nil {
		return nil, errors.Join(err, data.Close())
	}
	if err := e.openEvents(dir, opt); err != nil {
		return nil, errors.Join(err, data.Close())
	}
	e.running.Go(func() { e.KeepTidy(e.opened, e.Tidy) })
	if !opt.unhealed {
		e.running.Go(e.healer.replaceDamaged)
	}
	if !opt.keepAll {
		e.running.Go(e.remover.run)
	}
	return e, nil
}

// OpenControl opens or creates only the control data in dir, for operator commands while no server runs. It fails with
// store.ErrInUse when another process has it open.
func OpenControl(dir string, opt Options) (*control.Data, error) {
	data, _, err := openControl(dir, opt)
	return data, err
}

func openControl(dir string, opt Options) (*control.Data, *generation, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, err
	}
	if !opt.unfinished {
		if err := cmp.Or(CheckFinished(dir), refuseHalfUpgraded(dir), checkParts(dir), checkMoved(dir)); err != nil {
			return nil, nil, err
		}
	}
	opt = opt.withDefaults()
	data, err := control.OpenNewest(dir, opt.Now, opt.Log, func() ([]uint64, error) {
		parts, err := readGeneration(dir, opt.Log)
		return parts.sums(), err
	})
	if err != nil {
		return nil, nil, err
	}
	parts, err := readGeneration(dir, opt.Log) // now that control.db is locked
	if err == nil {
		err = parts.compare(data)
	}
	if err == nil && parts.cutOff {
		err = parts.write(synced)
	}
	if err != nil {
		return nil, nil, errors.Join(err, data.Close())
	}
	data.KeepCopy()
	data.Changing, data.Changed = parts.changing, parts.changed
	data.AuditLimits = cmp.Or(opt.AuditLimits, data.AuditLimits)
	return data, parts, nil
}

// checkParts refuses a directory that has events, but no control data. A new control.db would lack their merchants.
func checkParts(dir string) error {
	for _, name := range []string{"control.db", "control.copy"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err == nil && info.Size() > 0 {
			return nil // control.Open sees whether it is sound
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, name := range []string{"events", "archive", "index.db"} {
		if durable.Exists(filepath.Join(dir, name)) {
			return fmt.Errorf("%s is missing or empty, but %s is there: the partners, merchants and tags are missing. "+
				"Nothing was changed. Restore a backup, or let \"mtagd repair\" make a new directory of what there is",
				filepath.Join(dir, "control.db"), filepath.Join(dir, name))
		}
	}
	return nil
}

// openEvents opens the journal, the archive and the index, and starts them.
func (e *engine) openEvents(dir string, opt Options) (err error) {
	if e.damage, err = openDamage(dir, opt); err != nil {
		return err
	}
	parts := Parts(dir)
	if e.journal, err = journal.Open(parts["journal"], journal.Options{Log: opt.Log, Now: opt.Now, Refuses: e.Refuses,
		Rebuilding: e.healer.keysLost, Lost: readLostKeys(dir, opt.Log),
		Pace: func() func() { return e.background.pace(compactWork) }}); err != nil {
		return err
	}
	if err = e.healer.openArchive(); err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", dir, err), e.journal.Close())
	}
	x, err := e.index.openIndex()
	if err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", dir, err), e.archive.Close(), e.journal.Close())
	}
	e.index.now = e.index.newUsedIndex(x)
	err = errors.Join(durable.SyncPath(dir), e.index.parts.advance(x.SetOpening)) // the first: names of new files
	last, lastErr := e.lastChunk()
	e.watchers.last.Store(last)
	if err = errors.Join(err, lastErr); err == nil {
		err = e.journal.Start(e.acceptsEvents, func(events []codec.Event, last uint64, release func()) {
			e.archiver.note(events)
			e.watchers.note(events, last) // before the index, because push waits while it is busy
			e.index.push(events, last, release)
		})
	}
	if err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", dir, err), x.Close(), e.archive.Close(), e.journal.Close())
	}
	e.Recorder = &e.journal.Recorder
	if e.journal.HasLost() {
		_ = e.shorts.note(store.MerchantKey{}, errors.New("a part of the log of events is lost")) // it is not known yet which events
	}
	e.index.pushed = last
	x.Start()
	e.archiver.start()
	if opt.Metrics != nil {
		opt.Metrics.MustRegister(slices.Concat(e.journal.Metrics(), e.index.now.metrics, e.index.metrics(), e.damage.metrics(), e.background.metrics(), e.healer.completeMetrics())...)
	}
	return nil
}

// acceptsEvents returns an error after a failure that needs a restart: then the journal accepts no marks. A failed
// index would not get them. After a failed change of control.db, their merchant may be deleted on disk.
func (e *engine) acceptsEvents() error {
	if e.index.failure() != nil {
		return store.Unavailable("the event index failed")
	}
	if e.Data.Failure() != nil {
		return store.Unavailable("a change of the control data failed")
	}
	return nil
}

// Ready implements store.Engine. A failed write to the journal comes before a failed index or control.db: a restart would
// repair these, but it must not build on events that may not be on disk.
func (e *engine) Ready() error {
	if err := e.journal.Failure(); err != nil {
		return err
	}
	if err := e.index.failure(); err != nil {
		return fmt.Errorf("%w: %w", store.ErrNeedsRestart, err) // which replays the events that are missing
	}
	if err := e.archive.Failure(); err != nil {
		return fmt.Errorf("%w: %w", store.ErrNeedsRestart, err) // until then, events stay in the journal
	}
	if err := e.Data.Failure(); err != nil {
		return err
	}
	return e.journal.Ready()
}

// Verify implements store.Engine.
func (e *engine) Verify(ctx context.Context, v store.Verification) (store.Verified, error) {
	return e.reader.Verify(ctx, v)
}

// Impaired implements store.Engine.
func (e *engine) Impaired() error { return e.healer.Impaired() }

// FreeSpace implements store.Engine.
func (e *engine) FreeSpace() uint64 { return e.journal.FreeSpace() }

// Close implements store.Engine.
func (e *engine) Close() error {
	e.index.mu.Lock()
	e.close() // no rebuild begins any more
	e.index.mu.Unlock()
	e.running.Wait()
	e.verifying.Lock()
	defer e.verifying.Unlock()
	err := e.Tidy(context.Background())
	if store.KindOf(err) == store.KindUnavailable {
		err = nil // the disk is full
	}
	// First, so that the index gets the last commits before it closes.
	e.journal.Drain()
	e.index.work.Wait()
	e.archiver.done.Wait()
	return errors.Join(err, e.index.now.Close(), e.archive.Close(), e.journal.Close(), e.Data.Close())
}
