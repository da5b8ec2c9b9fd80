package local

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"mtagd/store/local/badgerdb"
)

// turns lets streams of backups take turns with purges and with rebuilds of links and event_ids. Streams run beside each
// other, each of the others alone. While one of them waits, no new stream begins: with a backup every few seconds, there would
// never be a moment without one.
type turns struct {
	places *semaphore.Weighted // a stream takes one, a purge or a rebuild all
	whole  atomic.Int32        // streams of everything, which may take hours
	hangs  atomic.Bool         // a stream has outlasted the patience, and none has ended since

	patience time.Duration // how long streams are waited for: their destination may hang
}

const (
	allPlaces      = 1 << 20
	streamPatience = 10 * time.Second
)

func newTurns() *turns {
	return &turns{places: semaphore.NewWeighted(allPlaces), patience: streamPatience}
}

// stream begins a stream. It waits for whatever runs alone, or waits for that.
func (t *turns) stream(ctx context.Context) (end func(), err error) {
	err = t.places.Acquire(ctx, 1)
	return func() {
		t.places.Release(1)
		t.hangs.Store(false)
	}, err
}

// alone begins what runs alone, when no stream runs. It fails with badgerdb.ErrCopied if one takes long.
func (t *turns) alone(ctx context.Context) (end func(), err error) {
	if t.whole.Load() > 0 || t.hangs.Load() {
		return nil, badgerdb.ErrCopied
	}
	waiting, cancel := context.WithTimeout(ctx, t.patience)
	defer cancel()
	if t.places.Acquire(waiting, allPlaces) != nil {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		t.hangs.Store(true)
		return nil, badgerdb.ErrCopied
	}
	return func() { t.places.Release(allPlaces) }, nil
}
