package certs

import (
	"context"
	"sync"

	"github.com/caddyserver/certmagic"
	"golang.org/x/sync/semaphore"

	"mtagd/store"
)

// locks are certmagic's locks in memory: for one process.
type locks struct {
	byName sync.Map // *semaphore.Weighted by lock name: a few for each host
}

func (l *locks) Lock(ctx context.Context, name string) error {
	return l.lock(name).Acquire(ctx, 1)
}

func (l *locks) TryLock(_ context.Context, name string) (bool, error) {
	return l.lock(name).TryAcquire(1), nil
}

func (l *locks) Unlock(_ context.Context, name string) error {
	l.lock(name).Release(1)
	return nil
}

func (l *locks) lock(name string) *semaphore.Weighted {
	found, _ := l.byName.LoadOrStore(name, semaphore.NewWeighted(1))
	return found.(*semaphore.Weighted)
}

// fileStorage keeps certificates in files. Lock files are not needed, because only one process at a time has the data directory
// open; after a kill, they would block the next process.
type fileStorage struct {
	files
	locks // before those of FileStorage, which are one level deeper
}

type files struct{ *certmagic.FileStorage }

// newStorage returns where a config keeps certificates.
func newStorage(cfg Config) certmagic.Storage {
	if cfg.Shared != nil {
		return &sharedStorage{shared: cfg.Shared, leases: map[string]store.Lease{}}
	}
	return &fileStorage{files: files{&certmagic.FileStorage{Path: cfg.Dir}}}
}
