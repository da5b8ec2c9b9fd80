package tlsmgr

import (
	"context"
	"sync"

	"github.com/caddyserver/certmagic"
	"golang.org/x/sync/semaphore"
)

// certStore keeps certificates in files, and its locks in memory: one process at a time has the data
// directory open. Lock files would outlive a process that was killed, and hold up its successor.
type certStore struct {
	*certmagic.FileStorage
	locks sync.Map // *semaphore.Weighted, by name: a few for each host
}

func newCertStore(dir string) *certStore {
	return &certStore{FileStorage: &certmagic.FileStorage{Path: dir}}
}

// Lock implements certmagic.Locker.
func (s *certStore) Lock(ctx context.Context, name string) error {
	return s.lock(name).Acquire(ctx, 1)
}

// TryLock implements certmagic.TryLocker.
func (s *certStore) TryLock(_ context.Context, name string) (bool, error) {
	return s.lock(name).TryAcquire(1), nil
}

// Unlock implements certmagic.Locker.
func (s *certStore) Unlock(_ context.Context, name string) error {
	s.lock(name).Release(1)
	return nil
}

func (s *certStore) lock(name string) *semaphore.Weighted {
	l, _ := s.locks.LoadOrStore(name, semaphore.NewWeighted(1))
	return l.(*semaphore.Weighted)
}
