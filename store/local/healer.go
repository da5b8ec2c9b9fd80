package local

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/codec"
	"mtagd/store/local/control"
	"mtagd/store/local/space"
)

// A table of Badger may be found damaged, also when the engine opens. Until it is replaced, answers that need the
// damaged part fail with KindUnavailable, and all others go on:
//
//  1. Read all tables again. If they are sound, the damage was a passing disk error. While the disk still returns errors,
//     wait: a rebuild would lose what it cannot read.
//  2. Copy everything readable, including blocks with one wrong bit, and use the copy from then on.
//  3. Of the archive: verify everything. Note the lost events, which only the index still has, in damaged.jsonl, and
//     rebuild the index without them.
//  4. Of links and event_ids: write again what events have of them. Until then, a look-up fails if it finds nothing where
//     keys were lost (relink.go).
//
// Meanwhile /readyz names the damage (Impaired).

// healer replaces what is damaged while the engine runs, and writes again what that has cost and events still have.
type healer struct {
	*stored
	control   *control.Data
	reader    *reader
	archiver  *archiver
	remover   *remover
	now       func() time.Time
	diskFails time.Time // when the disk began to return errors, while damage is known (mayRebuild)
}

// archivePart is a directory beside archive/, to which a damaged one is copied (badgerdb.Rebuild).
const archivePart = "archive.part"

// openArchive opens the archive. A damaged one is replaced first by what can be read of it, so that damage costs only
// the events that it hit. A kill leaves the one or the other.
func (h *healer) openArchive() error {
	dir := Parts(h.dir)["archive"]
	var damage error
	if h.archive, damage = archive.Open(dir, h.log); !errors.Is(damage, codec.ErrCorrupt) {
		return damage
	}
	h.log.Error("archive/ is damaged: what can be read of it is copied. This may take minutes", "error", damage)
	forgotten, err := h.journal.Forgotten()
	if err == nil {
		err = archive.Rebuild(h.opened, dir, forgotten, h.log, h.lostPart, h.repeatErasures)
	}
	if err != nil {
		return fmt.Errorf("archive/ is damaged, and cannot be rebuilt: %w. Nothing was changed. Restore a backup, or let "+
			"\"mtagd repair\" make a new directory of what there is", err)
	}
	h.noteRebuilt()
	h.archive, err = archive.Open(dir, h.log)
	return err
}

// noteRebuilt notes that a part of the archive may be lost. settleShorts finds out, and tries until it has.
func (h *healer) noteRebuilt() {
	_ = h.shorts.note(store.MerchantKey{}, errors.New("a part of archive/ may be lost"))
}

// lostPart logs that a part of a file of the archive is lost.
func (h *healer) lostPart(path string, err error) {
	h.log.Error("a part of archive/ is lost", "file", path, "error", err)
}

// repeatErasures has erasures done again: what they have removed may be back.
func (h *healer) repeatErasures() error { return h.control.RepeatErasures(h.opened) }

const (
	damageInterval = 200 * time.Millisecond // between two looks for damage
	replaceRetry   = 5 * time.Second        // after a failure, doubled after each further one
	replaceRarest  = time.Minute            // the longest time between two tries: answers fail meanwhile
	diskFailsLong  = 10 * time.Minute       // how long a rebuild waits while the disk also returns errors
)

// replaceDamaged looks for damage that reads have met, until the engine closes.
func (h *healer) replaceDamaged() {
	wait, retry := damageInterval, replaceRetry
	for store.Sleep(h.opened, wait) == nil {
		if wait == damageInterval {
			retry = replaceRetry
		}
		wait = damageInterval
		for _, check := range []func() error{h.checkArchive, h.checkKeys, h.relink, h.settleShorts} {
			if err := check(); err != nil && h.opened.Err() == nil {
				h.log.Error("what is damaged cannot be rebuilt now, and what needs it is not answered", "error", err)
				if wait = time.Second; !errors.Is(err, badgerdb.ErrCopied) {
					wait, retry = retry, min(2*retry, replaceRarest)
				}
			}
		}
	}
}

func (h *healer) checkArchive() error {
	damage := h.archive.Damage()
	if damage == nil {
		return nil
	}
	h.log.Error("archive/ is damaged: answers that need the damaged part get an error, all others go on", "error", damage)
	if err := h.archive.Recheck(h.opened, h.remover.pace()); !h.mayRebuild(err) {
		return err
	}
	if err := h.replaceArchive(); err != nil {
		return err
	}
	h.remover.runner.Wake()
	h.log.Info("archive/ was replaced by what can be read of it")
	h.noteRebuilt()
	return nil
}

// mayRebuild reports whether tables with this damage are rebuilt now. Only replaceDamaged calls it.
func (h *healer) mayRebuild(damage error) bool {
	if !errors.Is(damage, unix.EIO) {
		h.diskFails = time.Time{}
		return errors.Is(damage, codec.ErrCorrupt)
	}
	if h.diskFails.IsZero() {
		h.diskFails = time.Now()
	}
	return errors.Is(damage, codec.ErrCorrupt) && time.Since(h.diskFails) >= diskFailsLong
}

// replaceArchive replaces the damaged tables of the archive. Nothing is moved or removed meanwhile, and no erasure
// runs: it would say that it is done, though what it had removed is back.
func (h *healer) replaceArchive() error {
	h.remover.busy.Lock()
	defer h.remover.busy.Unlock()
	defer h.PauseMoves()()
	h.removing.Lock()
	defer h.removing.Unlock()
	size, _ := h.archive.Sizes()
	if free, err := space.Free(h.dir); err != nil || free < MinFree+size {
		return errors.Join(err, badgerdb.ErrNearlyFull)
	}
	return h.archive.Rebuild(h.opened, h.lostPart, h.repeatErasures)
}

func (h *healer) checkKeys() error {
	if h.journal.Damage() == nil {
		return nil
	}
	err := h.journal.Recheck(h.opened)
	if !h.mayRebuild(err) {
		return err
	}
	return h.rebuildKeys(err, h.keysLost)
}

// rebuildKeys rebuilds links and event_ids. No stream of a backup runs meanwhile: it could wait for
// the rebuild while it holds a lock that lost needs.
func (h *healer) rebuildKeys(damage error, lost func([]badgerdb.Range) error) error {
	h.remover.busy.Lock() // as in replaceArchive
	defer h.remover.busy.Unlock()
	end, err := h.turns.alone(h.opened)
	if err != nil {
		return err
	}
	defer end()
	return h.journal.RebuildKeys(h.opened, damage, lost)
}

// settleShorts finds out what is missing after a short read.
func (h *healer) settleShorts() error {
	found := h.shorts.all()
	if found == nil {
		return nil
	}
	h.log.Error("answers have found fewer events than the index counts, and have failed. All data is verified now", "error", errors.Join(found...))
	pace := h.remover.pace()
	if _, err := h.reader.Verify(h.opened, store.Verification{Found: func(f store.Finding) {
		h.log.Error("damage was found in the data", "part", f.Part, "where", f.Where, "problem", f.Problem, "events", f.Events, "merchants", f.Merchants)
	}, Read: func(store.Part, uint64, uint64) { pace() }}); err != nil {
		return err
	}
	h.shorts.clear()
	return nil
}

// Impaired says what is wrong with the data while the engine accepts events, but some answers fail; nil: nothing is known.
func (h *healer) Impaired() error {
	all := h.shorts.all()
	for part, damage := range map[string]error{"archive/": h.archive.Damage(), "events/": h.journal.Damage()} {
		if damage != nil {
			all = append(all, fmt.Errorf("%s is damaged, and is being rebuilt: %w", part, damage))
		}
	}
	if err := h.control.Damage(); err != nil {
		all = append(all, fmt.Errorf("control.db is damaged, and what needs the damaged part is not changed until the next start: %w", err))
	}
	if len(h.journal.Lost()) > 0 {
		all = append(all, errors.New("events/ was damaged: lost links and event_ids are being written again, and what may need them is not answered"))
	}
	return errors.Join(all...)
}

// completeMetrics returns the metrics of damage, and of short reads.
func (h *healer) completeMetrics() []prometheus.Collector {
	return []prometheus.Collector{h.shorts.count, newGauge("mtagd_impaired",
		"1 while some answers fail because data is damaged or missing, else 0; /readyz says which.",
		func() float64 { return oneIf(h.Impaired() != nil) })}
}
