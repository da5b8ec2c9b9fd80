package local

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/local/space"
)

// archiver moves events from the journal to the archive in the background, the oldest chunks first:
//
//  1. When enough events wait, it reads a run of chunks. It takes only chunks that the index on disk covers. So after a
//     kill, the journal still has everything that the index must replay.
//  2. It adds the run to the archive. From then on, these events are read from the archive.
//  3. The journal forgets the chunks.
//
// After a kill between 2 and 3, the next start continues with 3: all events up to the archive's boundary are in the
// archive. A damaged chunk is noted, as in a listing.
type archiver struct {
	*stored
	index      *liveIndex
	background *background
	run        int          // bytes of events in a run
	paced      bool         // else it looks for events all the time
	waiting    atomic.Int64 // bytes of events that wait, approximately

	reclaiming atomic.Bool

	// Guarded by moving:
	forgotten uint64      // chunks up to this one were forgotten by the journal
	buffer    archive.Run // the last run

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

func newArchiver(l *liveIndex, b *background, opt Options) *archiver {
	a := &archiver{stored: l.stored, index: l, background: b, run: archiveRun, paced: true}
	if opt.ArchiveRun > 0 {
		a.run, a.paced = opt.ArchiveRun, false
	}
	a.waiting.Store(math.MaxInt64 / 2) // unknown, until a run that is not full has been read
	return a
}

// start starts the archiver. It ends when the engine begins to close.
func (a *archiver) start() {
	interval := archiveInterval
	if !a.paced {
		interval = time.Millisecond
	}
	a.done.Go(func() {
		logged := "" // an error is logged once
		for store.Sleep(a.opened, interval) == nil {
			err := a.moveAll(false)
			if err == nil {
				logged = ""
			} else if err.Error() != logged && a.opened.Err() == nil {
				logged = err.Error()
				a.log.Error("events cannot be archived now, and stay in the journal", "error", err)
			}
		}
	})
}

// note counts events that were committed. The journal calls it with each commit.
func (a *archiver) note(events []codec.Event) {
	bytes := 0
	for i := range events {
		bytes += int(events[i].Size)
	}
	a.waiting.Add(int64(bytes))
	a.background.note()
}

// moveAll moves runs until too few events wait for a full one. If everything is true, it also moves the rest. After an
// error, a later call tries again.
func (a *archiver) moveAll(everything bool) error {
	for a.opened.Err() == nil && (everything || a.waiting.Load() >= int64(a.run)) {
		more, err := a.move(everything, a.pace())
		if err == nil && a.reclaiming.CompareAndSwap(false, true) {
			a.done.Go(func() { // beside further runs
				defer a.reclaiming.Store(false)
				if err := a.reclaim(); err != nil && a.opened.Err() == nil && !badgerdb.IsNearlyFull(err) {
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
	x := a.index.use() // a rebuild replaces it only when nothing moves
	defer x.users.Done()
	if everything || !a.paced {
		if err := x.Merge(a.opened); err != nil {
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
	if free, err := space.Free(a.archive.Dir()); err == nil && free < archiveReserve+2*int64(run.Bytes()) {
		return false, badgerdb.ErrNearlyFull // the events stay in the journal
	}
	if last > a.archive.Boundary() {
		if err := a.archive.Add(run, last, pace); err != nil {
			return false, err
		}
		a.waiting.Add(-int64(run.Bytes()))
		if err := a.forgetArchived(); err != nil {
			return false, err
		}
	}
	if damaged != nil {
		return true, a.noteChunks(a.opened, x.Index, damaged) // the next run passes over it
	}
	return full, nil
}

// moveTo moves events until the archive has all events up to the chunk seq, which is on disk. Its pauses are short,
// because an erasure may wait for it.
func (a *archiver) moveTo(ctx context.Context, seq uint64) error {
	if err := a.index.withIndex(func(x *usedIndex) error { return x.wait(ctx, seq) }); err != nil {
		return err
	}
	a.moving.Lock()
	err := a.forgetArchived()
	a.moving.Unlock()
	if err != nil {
		return err
	}
	for a.archive.Boundary() < seq {
		if err := ctx.Err(); err != nil {
			return err
		}
		before := a.archive.Boundary()
		more, err := a.move(true, a.background.pace(eraseWork))
		if err != nil {
			return err
		}
		if !more && a.archive.Boundary() == before {
			return nil // what is left are damaged chunks
		}
	}
	return nil
}

// reclaim gives back the disk space of events that were removed, and merges the tables of runs.
func (a *archiver) reclaim() error {
	return a.archive.Reclaim(a.opened, a.background.pace(compactWork))
}

// read reads a run of the chunks after the boundary, up to the chunk upTo. The run ends before a damaged chunk that was
// not set aside, which is returned in damaged. last is the last chunk of the run.
func (a *archiver) read(upTo uint64, pace func()) (run *archive.Run, last uint64, damaged journal.DamagedChunks, err error) {
	run = &a.buffer
	run.Reset(a.run)
	last = a.archive.Boundary()
	for {
		err := a.journal.Scan(a.opened, last+1, upTo, nil, func(seq uint64, events []journal.Event) bool {
			last = seq
			for i := range events {
				run.Append(events[i].Merchant, events[i].Position, events[i].Body)
			}
			pace()
			return run.Bytes() < a.run
		})
		damaged, isDamage := errors.AsType[journal.DamagedChunks](err)
		if !isDamage {
			return run, last, nil, err
		}
		if !a.damage.isNoted(damaged[0].Seq) {
			return run, last, damaged, nil
		}
		last = damaged[0].Seq
	}
}

// forgetArchived lets the journal forget archived chunks.
func (a *archiver) forgetArchived() error {
	boundary := a.archive.Boundary()
	if boundary <= a.forgotten {
		return nil
	}
	if err := a.journal.Forget(boundary); err != nil {
		return err
	}
	a.forgotten = boundary
	return nil
}

// pace returns the pauses of a run. They become shorter when more than 32 runs wait, and with 128 there are none: a
// start after a kill reads what waits, a third of a second for 32 runs.
func (a *archiver) pace() func() {
	p := a.background.pacer(a.opened, packWork)
	p.work = func() work {
		w := packWork
		w.share *= max(1, a.waiting.Load()/int64(32*a.run))
		return w
	}
	return p.pause
}
