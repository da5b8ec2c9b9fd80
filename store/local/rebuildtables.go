package local

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/local/space"
)

// A table of Badger may be found damaged, also when the engine opens. Until it is replaced, answers that need the damaged part fail with
// KindUnavailable, and all others go on:
//
//  1. Read all tables again. If they are sound, the damage was a passing disk error. While the disk still returns errors,
//     wait: a rebuild would lose what it cannot read.
//  2. Copy everything readable, including blocks with one wrong bit, and use the copy from then on.
//  3. Verify everything. Note the lost events, which only the index still has, in damaged.jsonl, and rebuild the index
//     without them.
//
// Meanwhile /readyz names the damage (Impaired).

const (
	damageInterval = 200 * time.Millisecond // between two looks for damage
	replaceRetry   = 5 * time.Second        // after a failure, doubled after each further one
	replaceRarest  = 10 * time.Minute
	diskFailsLong  = 10 * time.Minute // how long a rebuild waits while the disk also returns errors
)

// replaceDamaged looks for damage that reads have met, until the engine closes.
func (e *engine) replaceDamaged() {
	if !e.archive.StoppedCleanly() || !e.journal.StoppedCleanly() { // damage is found before somebody needs what is there
		if err := errors.Join(e.archive.Recheck(e.opened, e.background.pace(compactWork, compactShare)), e.journal.Recheck(e.opened)); err != nil && e.opened.Err() == nil {
			e.opt.Log.Error("the check after the last stop has found damage", "error", err)
		}
	}
	wait, retry := damageInterval, replaceRetry
	for {
		select {
		case <-time.After(wait):
		case <-e.opened.Done():
			return
		}
		if wait == damageInterval {
			retry = replaceRetry
		}
		wait = damageInterval
		for _, check := range []func() error{e.checkArchive, e.checkKeys, e.settleShorts, e.relink} {
			if err := check(); err != nil && e.opened.Err() == nil {
				e.opt.Log.Error("what is damaged cannot be rebuilt now, and what needs it is not answered", "error", err)
				if wait = time.Second; !archive.IsBusy(err) && !errors.Is(err, journal.ErrCopied) {
					wait, retry = retry, min(2*retry, replaceRarest)
				}
			}
		}
	}
}

func (e *engine) checkArchive() error {
	damage := e.archive.Damage()
	if damage == nil {
		return nil
	}
	e.opt.Log.Error("archive/ is damaged: answers that need the damaged part get an error, all others go on", "error", damage)
	if err := e.archive.Recheck(e.opened, e.remover.pace()); !e.mayRebuild(err) {
		return err
	}
	if err := e.replaceArchive(); err != nil {
		return err
	}
	e.remover.nudge()
	e.opt.Log.Info("archive/ was replaced by what can be read of it")
	e.noteRebuilt()
	return nil
}

// mayRebuild reports whether tables with this damage are rebuilt now. Only replaceDamaged calls it.
func (e *engine) mayRebuild(damage error) bool {
	if !errors.Is(damage, unix.EIO) {
		e.diskFails = time.Time{}
		return errors.Is(damage, codec.ErrCorrupt)
	}
	if e.diskFails.IsZero() {
		e.diskFails = time.Now()
	}
	return errors.Is(damage, codec.ErrCorrupt) && time.Since(e.diskFails) >= diskFailsLong
}

// noteRebuilt notes that a part of the archive may be lost. settleShorts finds out, and tries until it has.
func (e *engine) noteRebuilt() {
	_ = e.shorts.note(codec.MerchantKey{}, errors.New("a part of archive/ may be lost"))
}

// replaceArchive replaces the damaged tables of the archive. Nothing is moved or removed meanwhile, and no erasure runs: it would say that
// it is done, though what it had removed is back.
func (e *engine) replaceArchive() error {
	e.remover.busy.Lock()
	defer e.remover.busy.Unlock()
	defer e.archiver.pauseMoves()()
	e.damage.removing.Lock()
	defer e.damage.removing.Unlock()
	size, _ := e.archive.Sizes()
	if free, err := space.Free(e.dir); err != nil || free < MinFree+size {
		return errors.Join(err, errNoSpace)
	}
	return e.archive.Rebuild(e.opened, filepath.Join(e.dir, archivePart), e.lostPart, e.repeatErasures)
}

func (e *engine) checkKeys() error {
	if e.journal.Damage() == nil {
		return nil
	}
	err := e.journal.Recheck(e.opened)
	if !e.mayRebuild(err) {
		return err
	}
	e.remover.busy.Lock() // as in replaceArchive
	defer e.remover.busy.Unlock()
	defer e.remover.nudge()
	return e.journal.RebuildKeys(e.opened, err, e.keysLost)
}

// settleShorts finds out what is missing after a short read.
func (e *engine) settleShorts() error {
	found := e.shorts.all()
	if found == nil {
		return nil
	}
	e.opt.Log.Error("answers have found fewer events than the index counts, and have failed. All data is verified now", "error", errors.Join(found...))
	if err := e.verifyNow(); err != nil {
		return err
	}
	e.shorts.clear()
	return nil
}

// verifyNow verifies all data in the background of a running server, as the scrub does.
func (e *engine) verifyNow() error {
	pace := e.remover.pace()
	_, err := e.Verify(e.opened, store.Verification{Found: func(f store.Finding) {
		e.opt.Log.Error("damage was found in the data", "part", f.Part, "where", f.Where, "problem", f.Problem, "events", f.Events, "merchants", f.Merchants)
	}, Read: func(store.Part, uint64, uint64) { pace() }})
	return err
}

// Impaired says what is wrong with the data while the engine accepts events: some answers fail. It returns nil when nothing is known.
func (e *engine) Impaired() error {
	all := e.shorts.all()
	for part, damage := range map[string]error{"archive/": e.archive.Damage(), "events/": e.journal.Damage()} {
		if damage != nil {
			all = append(all, fmt.Errorf("%s is damaged, and is being rebuilt: %w", part, damage))
		}
	}
	return errors.Join(all...)
}

// completeMetrics returns the metrics of damage, and of short reads.
func (e *engine) completeMetrics() []prometheus.Collector {
	return []prometheus.Collector{e.shorts.count, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "mtagd_impaired",
		Help: "1 while some answers fail because data is damaged or missing, else 0; /readyz says which.",
	}, func() float64 {
		if e.Impaired() != nil {
			return 1
		}
		return 0
	})}
}

// unread returns the error of an answer that needs events of a merchant that cannot be read now. Customers see it.
func unread(ctx context.Context, m codec.MerchantKey, err error) error {
	if err == nil || ctx.Err() != nil || isDamage(err) || store.KindOf(err) != store.KindInternal {
		return err
	}
	return fmt.Errorf("%w: %v", &store.Error{Kind: store.KindUnavailable, Field: "merchantId",
		Message: string(m.ID()) + ": some of its events cannot be read now. Ask again in a minute, or for other merchants only"}, err)
}
