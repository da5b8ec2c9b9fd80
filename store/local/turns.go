package local

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"mtagd/store/local/badgerdb"
)

// turns lets streams of backups and purges take turns: streams run beside each other, and a purge alone. A purge that waits
// keeps new streams from beginning: with a backup every few seconds, it would never find a moment without one.
type turns struct {
	places   *semaphore.Weighted // a stream takes one, and a purge all
	whole    atomic.Int32        // streams of everything, which may take hours
	patience time.Duration       // how long a purge waits for other streams: their destination may hang
}

const (
	allPlaces      = 1 << 20
	streamPatience = 10 * time.Second
)

func newTurns() *turns {
	return &turns{places: semaphore.NewWeighted(allPlaces), patience: streamPatience}
}

// stream begins a stream. It waits for a purge that runs or waits.
func (t *turns) stream(ctx context.Context) (end func(), err error) {
	err = t.places.Acquire(ctx, 1)
	return func() { t.places.Release(1) }, err
}

// purge begins a purge, when no stream runs. It fails with badgerdb.ErrCopied if one takes long.
func (t *turns) purge(ctx context.Context) (end func(), err error) {
	if t.whole.Load() > 0 {
		return nil, badgerdb.ErrCopied
	}
	waiting, cancel := context.WithTimeout(ctx, t.patience)
	defer cancel()
	if t.places.Acquire(waiting, allPlaces) != nil {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return nil, badgerdb.ErrCopied
	}
	return func() { t.places.Release(allPlaces) }, nil
}
