package local

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"mtagd/store/local/archive"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/local/space"
)

// archiver moves events from the journal to the archive in the background, the oldest chunks first:
//
//  1. When enough events wait, it reads a run of chunks. It takes only chunks that the index on disk covers. So after a kill, the
//     journal still has everything that the index must replay.
//  2. It adds the run to the archive. From then on, these events are read from the archive.
//  3. The journal forgets the chunks.
//
// After a kill between 2 and 3, the next start continues with 3: all events up to the archive's boundary are in the archive. A
// damaged chunk is noted, as in a listing.
type archiver struct {
	e       *engine
	log     *slog.Logger
	run     int          // bytes of events in a run
	paced   bool         // else it looks for events all the time
	waiting atomic.Int64 // bytes of events that wait, approximately

	reclaiming atomic.Bool

	moving sync.Mutex // held while events move, and to keep them from moving
	// Guarded by moving:
	forgotten uint64      // chunks up to this one were forgotten by the journal
	buffer    archive.Run // the last run

	stop context.Context
	done sync.WaitGroup
}

const (
	// archiveRun is the size of a run, in bytes of events. A run is held in memory. With larger runs, the blocks of small
	// merchants are rewritten less often.
	archiveRun = 16 << 20

	archiveInterval = time.Second

	// archiveReserve is how many bytes of the disk must stay free. The journal needs more to accept events, because
	// archiving frees space.
	archiveReserve = MinFree / 2
)

func newArchiver(e *engine, opt Options) *archiver {
	a := &archiver{e: e, log: opt.Log, run: archiveRun, paced: true, stop: e.opened}
	if opt.archiveRun > 0 {
		a.run, a.paced = opt.archiveRun, false
	}
	a.waiting.Store(math.MaxInt64 / 2) // unknown, until a run that is not full has been read
	return a
}

// start starts the archiver. It ends when the engine begins to close; wait returns then.
func (a *archiver) start() {
	interval := archiveInterval
	if !a.paced {
		interval = time.Millisecond
	}
	a.done.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		logged := "" // an error is logged once
		for {
			select {
			case <-a.stop.Done():
				return
			case <-ticker.C:
				err := a.moveAll(false)
				if err == nil {
					logged = ""
				} else if err.Error() != logged && a.stop.Err() == nil {
					logged = err.Error()
					a.log.Error("events cannot be archived now, and stay in the journal", "error", err)
				}
			}
		}
	})
}

func (a *archiver) wait() { a.done.Wait() }

// note counts events that were committed. The journal calls it with each commit.
func (a *archiver) note(events []codec.Event) {
	bytes := 0
	for i := range events {
		bytes += int(events[i].Size)
	}
	a.waiting.Add(int64(bytes))
	a.e.background.note()
}

// moveAll moves runs until too few events wait for a full one. If everything is true, it also moves the rest. After an error, a
// later call tries again.
func (a *archiver) moveAll(everything bool) error {
	for a.stop.Err() == nil && (everything || a.waiting.Load() >= int64(a.run)) {
		more, err := a.move(everything, a.pace())
		if err == nil && a.reclaiming.CompareAndSwap(false, true) {
			a.done.Go(func() { // beside further runs
				defer a.reclaiming.Store(false)
				if err := a.reclaim(); err != nil && a.stop.Err() == nil && !badgerdb.IsNearlyFull(err) {
					a.log.Error("the archive cannot be merged now, and takes more space", "error", err)
				}
			})
		}
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// move moves one run. It reports whether there may be more.
func (a *archiver) move(everything bool, pace func()) (more bool, err error) {
	a.moving.Lock()
	defer a.moving.Unlock()
	if err := a.forgetArchived(); err != nil {
		return false, err
	}
	x := a.e.index.use() // a rebuild replaces it only when nothing moves
	defer x.users.Done()
	if everything || !a.paced {
		if err := x.Merge(a.stop); err != nil {
			return false, err
		}
	}
	upTo, err := x.StoredUpTo()
	if err != nil {
		return false, err
	}
	run, last, damaged, err := a.read(upTo, pace)
	if err != nil {
		return false, err
	}
	full := run.Bytes() >= a.run
	if !full && !everything && damaged == nil {
		a.waiting.Store(int64(run.Bytes()))
		return false, nil
	}
	if free, err := space.Free(a.e.archive.Dir()); err == nil && free < archiveReserve+2*int64(run.Bytes()) {
		return false, errNoSpace
	}
	if last > a.e.archive.Boundary() {
		if err := a.e.archive.Add(run, last, pace); err != nil {
			return false, err
		}
		a.waiting.Add(-int64(run.Bytes()))
		if err := a.forgetArchived(); err != nil {
			return false, err
		}
	}
	if damaged != nil {
		return true, a.e.noteChunks(a.stop, x, damaged) // the next run passes over it
	}
	return full, nil
}

// moveTo moves events until the archive has all events up to the chunk seq, which is on disk. Its pauses are short, because an
// erasure may wait for it.
func (a *archiver) moveTo(ctx context.Context, seq uint64) error {
	if err := a.e.withIndex(func(x *usedIndex) error { return x.wait(ctx, seq) }); err != nil {
		return err
	}
	a.moving.Lock()
	err := a.forgetArchived()
	a.moving.Unlock()
	if err != nil {
		return err
	}
	for a.e.archive.Boundary() < seq {
		if err := ctx.Err(); err != nil {
			return err
		}
		before := a.e.archive.Boundary()
		more, err := a.move(true, a.e.remover.pace())
		if err != nil {
			return err
		}
		if !more && a.e.archive.Boundary() == before {
			return nil // what is left are damaged chunks
		}
	}
	return nil
}

// reclaim gives back the disk space of events that were removed, and merges the tables of runs.
func (a *archiver) reclaim() error {
	return a.e.archive.Reclaim(a.stop, a.e.background.pace(compactWork, compactShare))
}

// read reads a run of the chunks after the boundary, up to the chunk upTo. The run ends before a damaged chunk that was not set
// aside, which is returned in damaged. last is the last chunk of the run.
func (a *archiver) read(upTo uint64, pace func()) (run *archive.Run, last uint64, damaged journal.DamagedChunks, err error) {
	run = &a.buffer
	run.Reset(a.run)
	err = a.e.journal.StoredChunks(a.e.archive.Boundary(), upTo, func(seq uint64, events []journal.Stored) bool {
		last = seq
		for _, e := range events {
			run.Append(e.Merchant, e.Position, e.Body)
		}
		pace()
		return run.Bytes() < a.run && a.stop.Err() == nil
	}, func(d journal.DamagedChunk) bool {
		if a.e.damage.isNoted(d.Seq) {
			last = d.Seq
			return true
		}
		damaged = journal.DamagedChunks{d}
		return false
	})
	return run, last, damaged, err
}

// forgetArchived lets the journal forget archived chunks.
func (a *archiver) forgetArchived() error {
	boundary := a.e.archive.Boundary()
	if boundary <= a.forgotten {
		return nil
	}
	if err := a.e.journal.Forget(boundary); err != nil {
		return err
	}
	a.forgotten = boundary
	return nil
}

// errNoSpace keeps events in the journal while the disk is nearly full.
var errNoSpace = errors.New("the disk is nearly full")

// pace returns the pauses of a run. They become shorter when more than 32 runs wait, and with 128 there are none: a start after a kill reads
// what waits, a third of a second for 32 runs.
func (a *archiver) pace() func() {
	return a.e.background.pacer(a.stop, packWork, func() int {
		return int(packShare * max(1, a.waiting.Load()/int64(32*a.run)))
	}).pause
}

// pauseMoves keeps events from moving until release is called.
func (a *archiver) pauseMoves() (release func()) {
	a.moving.Lock()
	return a.moving.Unlock
}

// readEvents calls use with the events of a merchant at these positions; n is the index of the position in positions. An event
// is valid until use returns. If some events are damaged, use has got only a part of the others, and readEvents returns
// journal.DamagedChunks or archive.Damaged.
func (e *engine) readEvents(ctx context.Context, m codec.MerchantKey, positions []codec.Position, use func(n int, event journal.Event)) error {
	wanted := make([]journal.Wanted, len(positions))
	for i, at := range positions {
		wanted[i] = journal.Wanted{Position: at, N: i}
	}
	slices.SortFunc(wanted, func(a, b journal.Wanted) int { return a.Compare(b.Position) })
	archived, err := e.readArchived(ctx, m, wanted, use)
	if err != nil {
		return err
	}
	wanted = wanted[archived:]
	for {
		err := e.journal.Read(ctx, wanted, use)
		damaged, ok := errors.AsType[journal.DamagedChunks](err)
		if !ok {
			return err
		}
		// The events may have moved meanwhile: read those that the archive has now.
		moved, err := e.readArchived(ctx, m, wanted, use)
		if err != nil {
			return err
		}
		if moved == 0 {
			return damaged
		}
		wanted = wanted[moved:]
	}
}

// readArchived reads the events that the archive has, and returns their number n. wanted is sorted, so they are its first n.
func (e *engine) readArchived(ctx context.Context, m codec.MerchantKey, wanted []journal.Wanted, use func(n int, event journal.Event)) (n int, err error) {
	boundary := e.archive.Boundary()
	n, _ = slices.BinarySearchFunc(wanted, boundary+1, func(w journal.Wanted, seq uint64) int {
		if w.Seq < seq {
			return -1
		}
		return 1
	})
	if n == 0 {
		return 0, nil
	}
	positions := make([]codec.Position, n)
	for i := range positions {
		positions[i] = wanted[i].Position
	}
	var damaged archive.Damaged
	err = e.archive.Read(ctx, m, positions, func(i int, stored archive.Event) {
		event, err := journal.DecodeBody(m, stored.Position, stored.Body)
		if err != nil {
			damaged = append(damaged, archive.Damage{Merchant: m, After: codec.Position{Seq: stored.Seq - 1}, Last: stored.Position, Err: err})
			return
		}
		use(wanted[i].N, event)
	})
	if err == nil && damaged != nil {
		err = damaged
	}
	return n, unread(ctx, m, err)
}
