package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"mtagd/store"
	"mtagd/store/local/archive"
	"mtagd/store/local/codec"
	"mtagd/store/local/journal"
	"mtagd/store/local/rank"
	"mtagd/store/removal"
	"mtagd/store/rules"
)

// The steps of an erasure:
//
//  1. Erase stores it in control.db, with hashes only.
//  2. It waits until the events that came in before are on disk, and finds the person's links. With suppress, events with a linked
//     identifier are refused from now on.
//  3. It moves the earlier events to the archive, and reads all archived events of the merchant to find the person's. Their number
//     is stored with the erasure.
//  4. It removes the links and the remembered event_ids, then the events from the index, then the events from the archive.
//  5. It purges the files (Purge). Only then is the erasure done.
//
// After a kill, all steps from 2 on run again. Step 3 then finds only the events that are left, and keeps the number that was stored.

// Erase implements store.Persons.
func (e *engine) Erase(ctx context.Context, id store.MerchantID, named store.Identity, opt store.ErasureOptions) (store.Erasure, error) {
	m, err := codec.NewMerchantKey(id)
	if err != nil {
		return store.Erasure{}, err
	}
	who, err := e.resolvePerson(ctx, m, named, opt.Claimed)
	if err != nil {
		return store.Erasure{}, err
	}
	return e.AddErasure(ctx, id, who, opt.Suppress)
}

// EraseOf implements removal.Engine: the steps 2 to 4.
func (r *remover) EraseOf(ctx context.Context, id store.MerchantID, erasures []store.Erasure) error {
	m, err := codec.NewMerchantKey(id)
	if err != nil {
		return err
	}
	x := rules.NewErasing(erasures)
	var links []store.Link
	if err := r.e.eachLinkOf(ctx, m, x.Persons, func(l store.Link) error {
		links = append(links, l)
		return nil
	}); err != nil {
		return err
	}
	x.Found(links)
	if err := r.UpdateErasures(ctx, x.IDs, x.Begin); err != nil {
		return err
	}
	now := r.e.journal.Barrier() // after UpdateErasures: until then, an equal request joins this erasure
	if err := cmp.Or(r.broken(id), r.e.archiver.moveTo(ctx, now)); err != nil {
		return err
	}
	x.Until(now)
	found, err := r.find(ctx, m, x)
	if err != nil {
		return err
	}
	if err := r.UpdateErasures(ctx, x.IDs, x.Remove); err != nil {
		return err
	}
	// That the muids had links stays noted, by a hash: somebody may know them, and say that he has their cookie.
	if err := r.e.journal.Remove(m, links, found.remembered); err != nil {
		return err
	}
	return r.removeEvents(ctx, m, found.keys)
}

// foundEvents are the events of several persons.
type foundEvents struct {
	keys       []rank.Key
	remembered []journal.Remembered
}

// find finds the events that erasures remove.
func (r *remover) find(ctx context.Context, m codec.MerchantKey, x *rules.Erasing) (found foundEvents, err error) {
	var reader rules.EventReader
	err = r.e.eachOf(ctx, m, x.Persons, r.pace(), func(e *journal.Event, owners, claimed []int) error {
		if !x.Take(e.Seq, owners, claimed) {
			return nil
		}
		found.keys = append(found.keys, rank.Key{Time: e.Time, Position: e.Position})
		if id, ok := reader.EventID(e.Raw); ok {
			_, name := codec.SplitSeries(e.Series)
			found.remembered = append(found.remembered, journal.Remembered{Name: string(name), EventID: id})
		}
		return nil
	})
	return found, err
}

// pace returns the pauses of an erasure.
func (r *remover) pace() func() { return r.e.background.pace(eraseWork, eraseShare) }

// removeEvents removes archived events of a merchant from the index, and then from the archive. keys are in the order of
// positions.
func (r *remover) removeEvents(ctx context.Context, m codec.MerchantKey, keys []rank.Key) error {
	if len(keys) == 0 {
		return nil
	}
	var indexed rank.Removed
	done := r.change(m)
	defer func() { done(indexed.Events) }()
	if err := r.e.withIndex(func(x *usedIndex) (err error) {
		indexed, err = x.Remove(ctx, m, keys)
		return err
	}); err != nil {
		return err
	}
	positions := make([]codec.Position, len(keys))
	for i, k := range keys {
		positions[i] = k.Position
	}
	slices.SortFunc(positions, codec.Position.Compare)
	removed := 0
	for near := range neighbours(positions) {
		some, err := r.e.archive.Rewrite(ctx, m, near[0], near[len(near)-1], func(e archive.Event) bool {
			_, goes := slices.BinarySearchFunc(near, e.Position, codec.Position.Compare)
			return !goes
		}, r.damaged, r.pace())
		if err != nil {
			return err
		}
		removed += int(some)
	}
	if removed < len(keys) {
		return r.e.shorts.note(m, fmt.Errorf("%d of %d events of merchant %s could not be removed", len(keys)-removed, len(keys), m.ID()))
	}
	return nil
}

// Drop implements removal.Engine. The tags of a deleted merchant are unknown, so nothing new comes in.
func (r *remover) Drop(ctx context.Context, id store.MerchantID) error {
	m, err := codec.NewMerchantKey(id)
	if err != nil {
		return err
	}
	if err := cmp.Or(r.broken(id), r.e.archiver.moveTo(ctx, r.e.journal.Barrier())); err != nil {
		return err
	}
	if err := r.e.journal.RemoveMerchant(ctx, m, r.pace()); err != nil {
		return err
	}
	defer r.change(m)(0)
	if err := r.e.withIndex(func(x *usedIndex) error { return x.Drop(ctx, m) }); err != nil {
		return err
	}
	_, err = r.e.archive.DropMerchant(ctx, m)
	return err
}

// Purge implements removal.Engine: step 5.
func (r *remover) Purge(ctx context.Context) error {
	if err := r.broken(""); err != nil {
		return err
	}
	err := r.e.journal.Purge(ctx, func(seq uint64) error { return r.e.archiver.moveTo(ctx, seq) })
	if err == nil {
		err = r.e.archive.Purge(ctx, r.pace())
	}
	if errors.Is(err, journal.ErrCopied) || archive.IsBusy(err) {
		return fmt.Errorf("%w: %w", removal.ErrWaits, journal.ErrCopied)
	}
	if err != nil {
		return err
	}
	for _, name := range replaced { // nobody knows whose data they have
		err = errors.Join(err, os.RemoveAll(filepath.Join(r.e.dir, name)))
	}
	return err
}
