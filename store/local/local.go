// Package local is the embedded engine, for one process and one data directory. It connects three packages that do not
// import each other:
//
//	DIR/control.db  control/  partners, keys, merchants, tags
//	DIR/events/     journal/  events, identity links, remembered event_ids
//	DIR/index.db    rank/     the index of the events; rebuilt from the journal when it is missing
//	DIR/set-aside/  damaged files, from before they were corrected or made anew
//	DIR/damaged.jsonl       the damaged chunks that were found
//
// They share codec (the byte forms of ids and values), boltfile (bbolt files with a format version) and space (of the
// disk). Each package comment describes the format of its files.
//
// DIR/set-aside/ has a directory for each start or rebuild that set something aside, named after its time in UTC, such as
// 20261122T143000.000000Z. It has the files under their own names: those of events/ as copies of what was corrected, and
// index.db. The file "reasons" has a line for each file of events/: its name, a colon and a blank, and what was wrong. Only
// the newest index.db is kept. The service reads none of them; "mtagd repair" reads those of events/.
//
// DIR/damaged.jsonl has a line for each damaged chunk, an object of JSON (note in damage.go), between two line feeds: the line
// before may have been cut short. A line that cannot be read is skipped.
//
// DIR/index.db.new is an index that is being rebuilt. The next start removes it.
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
// The feed reads the journal's chunks in their order, without the index. Of the newest chunks, the engine remembers in
// memory which merchants have events in them: a reader who follows the feed of a small merchant reads no others.
//
// # On a full disk
//
// The engine opens, reads and closes. Record and Resolve refuse what they would have to write, and a change of the control
// data fails with store.KindUnavailable. Once there is space again, everything goes on by itself.
//
// # Damage
//
// A chunk of events that cannot be read costs its own events: they are noted in damaged.jsonl and in the log, and taken out
// of the index. Pages and totals then have only events that can be served. A rebuild of the index goes on past such chunks.
//
// Damage of the index costs no events: the engine rebuilds the index from the journal by itself.
//
//	local.go    opens, connects and closes the three parts
//	listing.go  Events: one page of a merchant's events; Summary; Usage
//	feed.go     Feed: events in the order of receipt
//	tail.go     which merchants have events at the end of the journal; who waits for them
//	heal.go     rebuilds a damaged index
//	background.go what no request waits for: events of deleted merchants, last uses of keys
//	setaside.go takes the events of damaged chunks out of the index
//	verify.go   checks all data
//	compare.go  finds the events in which index and journal differ
//	repair.go   salvages what can be read into a new directory
//	damage.go   notes damaged chunks
//	lost.go     what is known of lost events
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
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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

	Metrics prometheus.Registerer // gets the engine's metrics, none of which it may have already; nil: they are not exported

	maxSeries  int // for tests (rank.LimitSeries); 0: the default
	maxNumbers int // for tests (tail.maxNumbers); 0: the default
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

// Parts returns the paths of the engine's files in dir, by what they hold.
func Parts(dir string) map[string]string {
	return map[string]string{
		"control": filepath.Join(dir, "control.db"),
		"journal": filepath.Join(dir, "events"),
		"index":   filepath.Join(dir, "index.db"),
	}
}

// engine implements store.Engine.
type engine struct {
	*control.Data
	dir     string
	opt     Options
	journal *journal.Journal
	index   liveIndex
	damage  *damageLog
	tail    *tail

	opened    context.Context // ends when Close begins
	close     context.CancelFunc
	wake      chan struct{}  // has background look for deleted merchants
	running   sync.WaitGroup // background
	verifying sync.RWMutex   // held for reading by verifications, which Close waits for
}

var _ store.Engine = (*engine)(nil)

// Open opens or creates the engine in dir. It fails with store.ErrInUse when another process has it open.
func Open(dir string, opt Options) (store.Engine, error) {
	opt = opt.withDefaults()
	data, err := OpenControl(dir, opt)
	if err != nil {
		return nil, err
	}
	e := &engine{Data: data, dir: dir, opt: opt, wake: make(chan struct{}, 1)}
	e.opened, e.close = context.WithCancel(context.Background())
	if err := e.openEvents(dir, opt); err != nil {
		return nil, errors.Join(err, data.Close())
	}
	e.running.Go(func() { e.background(opt.Log) })
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
	opt = opt.withDefaults()
	return control.Open(dir, opt.Now, opt.Log)
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
	if e.damage, err = openDamage(dir, opt); err != nil {
		return err
	}
	parts := Parts(dir)
	if e.journal, err = journal.Open(parts["journal"], journal.Options{Log: opt.Log, Now: opt.Now}); err != nil {
		return err
	}
	x, err := e.openIndex()
	if err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", dir, err), e.journal.Close())
	}
	e.index.now = newUsedIndex(x)
	x.OnDamage(func(err error) { e.healIndex(x, err) })
	if err == nil {
		err = journal.SyncPath(dir) // the names of new files
	}
	last, lastErr := e.journal.LastChunk()
	e.tail = newTail(last)
	if opt.maxNumbers > 0 {
		e.tail.maxNumbers = opt.maxNumbers
	}
	if err = errors.Join(err, lastErr); err == nil {
		err = e.journal.Start(e.acceptsEvents, func(events []codec.Event, last uint64, release func()) {
			e.tail.add(events, last) // before the index: when it is busy, push waits
			e.index.push(events, last, release)
		})
	}
	if err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", dir, err), x.Close(), e.journal.Close())
	}
	e.index.pushed = e.journal.Committed()
	x.Start()
	e.tail.start()
	if opt.Metrics != nil {
		opt.Metrics.MustRegister(slices.Concat(e.journal.Metrics(), e.index.now.metrics, e.index.metrics(), e.damage.metrics())...)
	}
	return nil
}

// catchUp replays the events that the index does not cover. When the index is of an older version, these are all events: it
// is emptied first. A kill loses nothing, as the next start goes on where the index ends.
func (e *engine) catchUp(x *rank.Index) error {
	covered := x.Covered()
	last, err := e.journal.LastChunk()
	if err != nil {
		return ofJournal(err)
	}
	// The index only ever got chunks that the journal had on disk. If the journal ends before the last one, the two are from
	// different times. If it has later ones, this one is missing, and is found like other damage.
	if last < covered {
		return errors.New("index.db covers events that are missing at the end of events/: part of events/ is lost, or events/ " +
			"is older than index.db. Nothing was changed. Copy the whole directory before anything else. Then restore events/ " +
			"from a newer backup, or, if there is none, let \"mtagd repair\" make a new directory of what there is")
	}
	if x.Outdated() {
		e.opt.Log.Info("index.db is of an older version: it is rebuilt from events/")
		if err := x.Reset(); err != nil {
			return err
		}
		covered = 0
	}
	return e.replay(x, covered, last)
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

// acceptsEvents returns an error after a failure that needs a restart. Then the journal accepts no marks: the index would not get
// them. After a failed change of control.db their merchant may be deleted on the disk.
func (e *engine) acceptsEvents() error {
	if e.index.failure() != nil {
		return store.Unavailable("the event index failed")
	}
	if e.Data.Failure() != nil {
		return store.Unavailable("a change of the control data failed")
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

// Ready implements store.Engine. A failed write to the journal comes before a failed index or control.db: a restart would
// repair these, but it must not build on events that may not be on disk.
func (e *engine) Ready() error {
	if err := e.journal.Failure(); err != nil {
		return err
	}
	if err := e.index.failure(); err != nil {
		return fmt.Errorf("%w: %w", store.ErrNeedsRestart, err) // which replays the events that are missing
	}
	if err := e.Data.Failure(); err != nil {
		return err
	}
	return e.journal.Ready()
}

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
	return errors.Join(err, e.closeParts())
}

func (e *engine) closeParts() error {
	// First, so that the index gets the last commits before it closes.
	drained := e.journal.Drain()
	e.tail.close()
	if err := drained; err != nil {
		return errors.Join(err, e.Data.Close())
	}
	e.index.work.Wait()
	return errors.Join(e.index.now.Close(), e.journal.Close(), e.Data.Close())
}
