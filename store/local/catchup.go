package local

import (
	"errors"
	"time"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
)

// errBeginAgain says that an index is older than the other files, or that its rebuild from the archive was cut off.
var errBeginAgain = errors.New("index.db does not have all events of archive/")

// catchUp replays the events that the index does not cover, in a new index all events. A kill loses nothing: the next start
// continues where the index ends, or begins again (errBeginAgain).
func (l *liveIndex) catchUp(x *rank.Index) error {
	covered, boundary := x.Covered(), l.archive.Boundary()
	forgotten, err := l.journal.Forgotten()
	if err != nil {
		return ofEvents("events/", err)
	}
	if boundary < forgotten {
		return errors.New("archive/ does not have events that were moved there from events/: part of archive/ is lost, or it is older " +
			"than events/. Nothing was changed. Copy the whole directory before anything else. Then restore archive/ and events/ " +
			"from a backup, or, if there is none, let \"mtagd repair\" make a new directory of what there is")
	}
	last, err := l.lastChunk()
	if err != nil {
		return err
	}
	if covered > last && l.journal.LostUpTo(covered) {
		last = covered // a listing finds out what is missing
	}
	if covered > last {
		// The index gets only chunks that the journal has on disk. If the events end before the chunk covered, the two are
		// from different times. If only that chunk is missing and later ones exist, it is found like other damage.
		return errors.New("index.db covers events that are missing at the end of events/: part of events/ is lost, or events/ " +
			"is older than index.db. Nothing was changed. Copy the whole directory before anything else. Then restore events/ " +
			"from a newer backup, or, if there is none, let \"mtagd repair\" make a new directory of what there is")
	}
	if covered > 0 && covered < boundary || !l.parts.hasIndex(x.Opening()) {
		return errBeginAgain
	}
	return l.replay(x, covered, last)
}

// replay passes the events of the chunks after from, up to and including upTo, to an index. If from is 0, it replays
// the archive first. No events may move to the archive meanwhile. Chunks and blocks that cannot be read are noted as
// damaged. If the error is codec.ErrCorrupt, the index is damaged.
func (l *liveIndex) replay(x *rank.Index, from, upTo uint64) error {
	if boundary := l.archive.Boundary(); from == 0 && boundary > 0 {
		if err := l.replayArchive(x, boundary); err != nil {
			return err
		}
		from = boundary
	}
	if from >= upTo {
		return nil
	}
	return l.replayJournal(x, from, upTo)
}

// replayArchive replays all archived events into an empty index, one merchant after the other. With each merge, the index
// notes the number that the last call of Replay passed: what it covers. All calls but the last pass their own count, which
// is far below the number of any chunk; only the last passes the boundary. So after a kill the index does not cover the
// boundary, and the next start begins again.
func (l *liveIndex) replayArchive(x *rank.Index, boundary uint64) error {
	merchants, err := l.archive.Merchants()
	if err != nil {
		return ofEvents("archive/", err)
	}
	progress, calls := l.progress("index.db is being rebuilt from archive/"), uint64(0)
	var replayed []codec.Event
	for i, m := range merchants {
		progress(uint64(i), uint64(len(merchants)))
		var failed error
		err := l.archive.Since(l.opened, m, store.Position{}, func(events []archive.Event) error {
			replayed = replayed[:0]
			for _, stored := range events {
				event, err := journal.DecodeBody(m, stored.Position, stored.Body)
				if err != nil {
					return err
				}
				replayed = append(replayed, event.Event)
			}
			calls++
			failed = x.Replay(replayed, calls)
			return failed
		}, func(d archive.Damage) {
			if err := l.damage.add(noteOf(d)); err != nil {
				l.log.Error("a damaged block cannot be noted", "merchant", m.ID(), "error", err)
			}
		})
		if failed != nil {
			return failed
		}
		if err != nil {
			return ofEvents("archive/", err)
		}
	}
	return x.Replay(nil, boundary)
}

func (l *liveIndex) replayJournal(x *rank.Index, from, upTo uint64) error {
	progress, first := l.progress("index.db is catching up with events/"), uint64(0)
	var skipped, failed error
	var replayed []codec.Event
	err := l.journal.Since(from, upTo, func(events []journal.Event, seq uint64) error {
		if err := l.opened.Err(); err != nil {
			return err
		}
		if first == 0 {
			first = seq // chunks are numbered by time, and the last one that the index covers may be much older
		}
		progress(seq-first, upTo-first)
		replayed = replayed[:0]
		for i := range events {
			replayed = append(replayed, events[i].Event)
		}
		failed = x.Replay(replayed, seq)
		return failed
	}, func(d journal.DamagedChunk) {
		if err := l.damage.add(note{Chunk: d.Seq, Reason: d.Reason()}); err != nil {
			l.log.Error("a damaged chunk cannot be noted", "chunk", d.Seq, "error", err)
		}
		skipped = errors.Join(skipped, x.Replay(nil, d.Seq)) // the index must cover it too: listings wait until the last chunk is covered
	})
	if failed == nil {
		err = ofEvents("events/", err)
	}
	return errors.Join(err, skipped)
}

// progressInterval is how often a replay logs its progress. Most replays take less.
const progressInterval = 5 * time.Second

// progress returns a function that logs now and then how far a replay is.
func (l *liveIndex) progress(message string) func(done, total uint64) {
	next := time.Now().Add(progressInterval)
	return func(done, total uint64) {
		if now := time.Now(); now.After(next) {
			next = now.Add(progressInterval)
			l.log.Info(message, "percent", 100*done/max(1, total))
		}
	}
}
