package local

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
)

// catchUp replays the events that the index does not cover. When the index is of an older version, or does not even cover the
// archive, these are all events: it is emptied first. A kill loses nothing: the next start goes on where the index ends, or
// begins again.
func (e *engine) catchUp(x *rank.Index) error {
	covered, boundary := x.Covered(), e.archive.Boundary()
	forgotten, err := e.journal.Forgotten()
	if err != nil {
		return ofEvents("events/", err)
	}
	if boundary < forgotten {
		return errors.New("archive/ does not have events that were moved there from events/: part of archive/ is lost, or it is older " +
			"than events/. Nothing was changed. Copy the whole directory before anything else. Then restore archive/ and events/ " +
			"from a backup, or, if there is none, let \"mtagd repair\" make a new directory of what there is")
	}
	last, err := e.lastChunk()
	if err != nil {
		return err
	}
	if covered > last {
		// The index only ever got chunks that the journal had on disk. If the events end before this one, the two are from
		// different times. If there are later ones, this one is missing, and is found like other damage.
		return errors.New("index.db covers events that are missing at the end of events/: part of events/ is lost, or events/ " +
			"is older than index.db. Nothing was changed. Copy the whole directory before anything else. Then restore events/ " +
			"from a newer backup, or, if there is none, let \"mtagd repair\" make a new directory of what there is")
	}
	if x.Outdated() {
		e.opt.Log.Info("index.db is of an older version: it is rebuilt from archive/ and events/")
	}
	if x.Outdated() || covered < boundary {
		if err := x.Reset(); err != nil {
			return err
		}
		covered = 0
	}
	return e.replay(x, covered, last)
}

// replay passes the events of the chunks after from, up to upTo, to an index: from the start those of the archive too. No
// events may move to the archive meanwhile. What cannot be read is noted. An error that is codec.ErrCorrupt is about the
// index.
func (e *engine) replay(x *rank.Index, from, upTo uint64) error {
	if boundary := e.archive.Boundary(); from == 0 && boundary > 0 {
		if err := e.replayArchive(x, boundary); err != nil {
			return err
		}
		from = boundary
	}
	if from >= upTo {
		return nil
	}
	return e.replayJournal(x, from, upTo)
}

// replayArchive replays all archived events into an empty index, merchant after merchant. The index notes what it covers with
// each merge, and takes only what it does not cover: until the end, that is the number of a call, far below that of any
// chunk. So after a kill the index does not cover the boundary, and the next start begins again.
func (e *engine) replayArchive(x *rank.Index, boundary uint64) error {
	merchants, err := e.archive.Merchants()
	if err != nil {
		return ofEvents("archive/", err)
	}
	next, calls := time.Now().Add(progressInterval), uint64(0)
	var replayed []codec.Event
	for i, m := range merchants {
		if now := time.Now(); now.After(next) {
			next = now.Add(progressInterval)
			e.opt.Log.Info("index.db is being rebuilt from archive/", "percent", 100*i/len(merchants))
		}
		var failed error
		err := e.archive.Since(e.opened, m, codec.Position{}, func(events []archive.Event) error {
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
			if err := e.damage.add(noteOf(d)); err != nil {
				e.opt.Log.Error("a damaged block cannot be noted", "merchant", m.ID(), "error", err)
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

// errReplayed ends a replay at its last chunk.
var errReplayed = errors.New("replayed")

func (e *engine) replayJournal(x *rank.Index, from, upTo uint64) error {
	p := replayProgress{log: e.opt.Log, last: upTo, next: time.Now().Add(progressInterval)}
	var skipped, failed error
	err := e.journal.Since(from, func(events []codec.Event, seq uint64) error {
		if seq > upTo {
			return errReplayed
		}
		if err := e.opened.Err(); err != nil {
			return err
		}
		p.report(seq)
		failed = x.Replay(events, seq)
		return failed
	}, func(d journal.DamagedChunk) {
		if d.Seq > upTo {
			return
		}
		if err := e.damage.add(note{Chunk: d.Seq, Reason: d.Reason()}); err != nil {
			e.opt.Log.Error("a damaged chunk cannot be noted", "chunk", d.Seq, "error", err)
		}
		skipped = errors.Join(skipped, x.Replay(nil, d.Seq)) // listings wait for the last chunk
	})
	switch {
	case errors.Is(err, errReplayed):
		err = nil
	case failed == nil:
		err = ofEvents("events/", err)
	}
	return errors.Join(err, skipped)
}

// ofEvents returns an error of reading a directory of events so that it does not look like damage of the index.
func ofEvents(dir string, err error) error {
	if errors.Is(err, codec.ErrCorrupt) {
		return fmt.Errorf("%s: %v", dir, err)
	}
	return err
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
