package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"mtagd/store"
	"mtagd/store/local/badgerdb"
	"mtagd/store/local/rank"
	"mtagd/store/removal"
)

// pace returns the pauses of an erasure.
func (r *remover) pace() func() { return r.background.pace(eraseWork) }

// removeEvents removes archived events of a merchant from the index, and then from the archive. keys are in the order of
// positions.
func (r *remover) removeEvents(ctx context.Context, m store.MerchantKey, keys []rank.Key) error {
	if len(keys) == 0 {
		return nil
	}
	indexed := uint64(0)
	done := r.change(m)
	defer func() { done(indexed) }()
	if err := r.index.withIndex(func(x *usedIndex) (err error) {
		indexed, err = x.Remove(ctx, m, keys)
		return err
	}); err != nil {
		return err
	}
	removed, err := r.archive.Remove(ctx, m, positionsOf(keys), r.damaged, r.pace())
	if err != nil {
		return err
	}
	if missing := len(keys) - int(removed); missing > 0 {
		return r.shorts.note(m, fmt.Errorf("%d of %d events of merchant %s could not be removed", missing, len(keys), m.ID()))
	}
	return nil
}

// EraseOf implements removal.Engine.
func (r *remover) EraseOf(ctx context.Context, m store.MerchantID, erasures []store.Erasure) error {
	return orWaits(r.Data.EraseOf(ctx, m, erasures))
}

// orWaits adds removal.ErrWaits to the error of a removal that meets a full disk or a backup.
func orWaits(err error) error {
	if badgerdb.IsNearlyFull(err) || errors.Is(err, badgerdb.ErrCopied) {
		return fmt.Errorf("%w: %w", removal.ErrWaits, err)
	}
	return err
}

// Drop implements removal.Engine. The tags of a deleted merchant are unknown, so nothing new comes in.
func (r *remover) Drop(ctx context.Context, id store.MerchantID) (err error) {
	defer func() { err = orWaits(err) }()
	m, err := store.NewMerchantKey(id)
	if err != nil {
		return err
	}
	if err := cmp.Or(r.broken(id), r.archiver.moveTo(ctx, r.journal.Barrier())); err != nil {
		return err
	}
	if err := r.journal.RemoveMerchant(ctx, m, r.pace()); err != nil {
		return err
	}
	defer r.change(m)(0)
	if err := r.index.withIndex(func(x *usedIndex) error { return x.Drop(ctx, m) }); err != nil {
		return err
	}
	_, err = r.archive.DropMerchant(ctx, m)
	return err
}

// Purge implements removal.Engine. Only then is an erasure done.
func (r *remover) Purge(ctx context.Context) error {
	r.background.purging.Store(true)
	err := r.purge(ctx)
	r.background.purging.Store(errors.Is(err, badgerdb.ErrCopied))
	return orWaits(err)
}

func (r *remover) purge(ctx context.Context) error {
	if err := r.broken(""); err != nil {
		return err
	}
	if err := r.archive.RoomToPurge(); err != nil {
		return err
	}
	if !r.turns.inVain() { // most events are moved before backups must wait
		if err := r.archiver.moveTo(ctx, r.journal.Barrier()); err != nil {
			return err
		}
	}
	end, err := r.turns.alone(ctx)
	if err != nil {
		return err
	}
	defer end()
	if err := r.journal.Purge(ctx, func(seq uint64) error { return r.archiver.moveTo(ctx, seq) }); err != nil {
		return err
	}
	return r.archive.Purge(ctx, r.pace())
}
