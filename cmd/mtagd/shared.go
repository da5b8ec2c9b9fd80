package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"mtagd/edge/limit"
	"mtagd/store"
)

// seedFile has the seed by which all nodes know the buckets of limits.
const seedFile = "limits/seed"

// shareLimits makes limits hold over all nodes of a database.
func (d *daemon) shareLimits(ctx context.Context) error {
	shared := sharedOf(d.engine)
	if shared == nil || !d.hasLimits() {
		return nil
	}
	seed, err := sharedSeed(ctx, shared)
	if err != nil {
		return fmt.Errorf("limits over all nodes: %w", err)
	}
	d.nodes = limit.NewExchange(seed, time.Now)
	d.inBackground(func(ctx context.Context) { d.nodes.Run(ctx, shared.Exchange, d.Log) })
	return nil
}

// sharedSeed returns the seed of all nodes. The first node draws it.
func sharedSeed(ctx context.Context, shared store.Shared) (seed limit.Seed, err error) {
	for {
		files, err := shared.Files(ctx, seedFile, true)
		if err != nil {
			return seed, err
		}
		if len(files) > 0 {
			text := files[0].Content
			if len(text) != 16 {
				return seed, fmt.Errorf("the file %s in the database has %d bytes, want 16", seedFile, len(text))
			}
			return limit.Seed{binary.BigEndian.Uint64(text), binary.BigEndian.Uint64(text[8:])}, nil
		}
		if err := drawSeed(ctx, shared); err != nil {
			return seed, err
		}
	}
}

// drawSeed stores a seed unless there is one. While another node does, it waits a little.
func drawSeed(ctx context.Context, shared store.Shared) (err error) {
	lease, err := shared.Lease(ctx, seedFile)
	if err != nil {
		return err
	}
	if lease == nil {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
			return nil
		}
	}
	defer func() { err = errors.Join(err, lease.Release(context.WithoutCancel(ctx))) }()
	if files, err := shared.Files(ctx, seedFile, false); err != nil || len(files) > 0 {
		return err
	}
	var text [16]byte
	_, _ = rand.Read(text[:]) // never fails
	return shared.PutFile(ctx, seedFile, text[:])
}
