package certs

import (
	"context"
	"sync"

	"github.com/caddyserver/certmagic"
	"golang.org/x/sync/semaphore"
)

// storage keeps certificates in files, but certmagic's locks in memory. Lock files are not needed, because only one
// process at a time has the data directory open; after a kill, they would block the next process.
type storage struct {
	*certmagic.FileStorage
	locks sync.Map // *semaphore.Weighted by lock name: a few for each host
}

func newStorage(dir string) *storage {
	return &storage{FileStorage: &certmagic.FileStorage{Path: dir}}
}

// Lock implements certmagic.Locker.
func (s *storage) Lock(ctx context.Context, name string) error {
	return s.lock(name).Acquire(ctx, 1)
}

// TryLock implements certmagic.TryLocker.
func (s *storage) TryLock(_ context.Context, name string) (bool, error) {
	return s.lock(name).TryAcquire(1), nil
}

// Unlock implements certmagic.Locker.
func (s *storage) Unlock(_ context.Context, name string) error {
	s.lock(name).Release(1)
	return nil
}

func (s *storage) lock(name string) *semaphore.Weighted {
	l, _ := s.locks.LoadOrStore(name, semaphore.NewWeighted(1))
	return l.(*semaphore.Weighted)
}
