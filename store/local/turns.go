package local

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"mtagd/store/local/badgerdb"
)

// turns lets streams of backups take turns with purges and with rebuilds of links and event_ids. Streams run beside each
// other; a purge or a rebuild runs alone. While one waits, no new stream begins: else, with a backup every few seconds, it
// would wait for ever.
type turns struct {
	places *semaphore.Weighted // a stream takes one, a purge or a rebuild all
	whole  atomic.Int32        // streams of everything, which may take hours
	hangs  atomic.Bool         // alone has waited in vain, and no stream has ended since

	patience time.Duration // how long streams are waited for: their destination may hang
}

const (
	allPlaces      = 1 << 20
	streamPatience = 10 * time.Second
)

func newTurns() *turns {
	return &turns{places: semaphore.NewWeighted(allPlaces), patience: streamPatience}
}

// stream begins a stream. It first waits for the purge or the rebuild that runs or waits.
func (t *turns) stream(ctx context.Context) (end func(), err error) {
	err = t.places.Acquire(ctx, 1)
	return func() {
		t.places.Release(1)
		t.hangs.Store(false)
	}, err
}

// inVain reports whether it is in vain to wait for the streams that run.
func (t *turns) inVain() bool { return t.whole.Load() > 0 || t.hangs.Load() }

// alone begins a purge or a rebuild when all streams have ended. It fails with badgerdb.ErrCopied when that takes long.
func (t *turns) alone(ctx context.Context) (end func(), err error) {
	end = func() { t.places.Release(allPlaces) }
	if t.places.TryAcquire(allPlaces) {
		return end, nil
	}
	if t.inVain() {
		return nil, badgerdb.ErrCopied
	}
	waiting, cancel := context.WithTimeout(ctx, t.patience)
	defer cancel()
	if t.places.Acquire(waiting, allPlaces) == nil {
		return end, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t.hangs.Store(true)
	return nil, badgerdb.ErrCopied
}
