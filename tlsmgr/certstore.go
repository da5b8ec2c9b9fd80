package tlsmgr

import (
	"context"
	"sync"

	"github.com/caddyserver/certmagic"
)

// certStore keeps certificates in files, and its locks in memory: one process at a time has the data
// directory open. Lock files would outlive a process that was killed, and hold up its successor.
type certStore struct {
	*certmagic.FileStorage

	mu    sync.Mutex
	locks map[string]*certLock
}

type certLock struct {
	held  chan struct{} // full while somebody has the lock
	users int           // who have it or wait for it
}

func newCertStore(dir string) *certStore {
	return &certStore{FileStorage: &certmagic.FileStorage{Path: dir}, locks: map[string]*certLock{}}
}

// Lock implements certmagic.Locker.
func (s *certStore) Lock(ctx context.Context, name string) error {
	l := s.use(name)
	select {
	case l.held <- struct{}{}:
		return nil
	case <-ctx.Done():
		s.release(name, l)
		return ctx.Err()
	}
}

// TryLock implements certmagic.TryLocker.
func (s *certStore) TryLock(_ context.Context, name string) (bool, error) {
	l := s.use(name)
	select {
	case l.held <- struct{}{}:
		return true, nil
	default:
		s.release(name, l)
		return false, nil
	}
}

// Unlock implements certmagic.Locker.
func (s *certStore) Unlock(_ context.Context, name string) error {
	s.mu.Lock()
	l := s.locks[name]
	s.mu.Unlock()
	if l != nil {
		<-l.held
		s.release(name, l)
	}
	return nil
}

func (s *certStore) use(name string) *certLock {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.locks[name]
	if l == nil {
		l = &certLock{held: make(chan struct{}, 1)}
		s.locks[name] = l
	}
	l.users++
	return l
}

func (s *certStore) release(name string, l *certLock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(s.locks, name)
	}
}
