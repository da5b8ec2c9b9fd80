package certs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync"
	"time"

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

// fileStorage keeps certificates in files. Lock files are not needed, because only one process at a time has the data
// directory open; after a kill, they would block the next process.
type fileStorage struct {
	files
	locks // before those of FileStorage, which are one level deeper
}

type files struct{ *certmagic.FileStorage }

func newStorage(cfg Config) certmagic.Storage {
	if cfg.Shared != nil {
		return &sharedStorage{shared: cfg.Shared, leases: map[string]store.Lease{}}
	}
	return &fileStorage{files: files{&certmagic.FileStorage{Path: cfg.Dir}}}
}

// sharedStorage keeps certificates in the store that all nodes share. A lock is a lease: so one node at a time orders
// or renews the certificate of a host, and what it stores, the others load instead of ordering too.
type sharedStorage struct {
	shared store.Shared
	locks  // keep the goroutines of this process from asking the store for the same lease

	mu     sync.Mutex
	leases map[string]store.Lease // that this process has, by lock name
}

var (
	_ certmagic.Storage          = (*sharedStorage)(nil)
	_ certmagic.TryLocker        = (*sharedStorage)(nil)
	_ certmagic.LockLeaseRenewer = (*sharedStorage)(nil)
)

const (
	// leasePoll is the mean time between two looks whether a lease is free that another node has.
	leasePoll = 500 * time.Millisecond
	// existsWithin is how long Exists waits for a store's answer. It returns no error, and false would order a certificate.
	existsWithin = 30 * time.Second
)

func (s *sharedStorage) Lock(ctx context.Context, name string) error {
	if err := s.locks.Lock(ctx, name); err != nil {
		return err
	}
	for {
		got, err := s.tryLease(ctx, name)
		if got {
			return nil
		}
		if err == nil {
			err = store.Sleep(ctx, time.Duration((0.5+rand.Float64())*float64(leasePoll)))
		}
		if err != nil {
			return cmp.Or(err, s.locks.Unlock(ctx, name))
		}
	}
}

func (s *sharedStorage) TryLock(ctx context.Context, name string) (bool, error) {
	if got, err := s.locks.TryLock(ctx, name); err != nil || !got {
		return false, err
	}
	got, err := s.tryLease(ctx, name)
	if !got {
		err = cmp.Or(err, s.locks.Unlock(ctx, name))
	}
	return got, err
}

// tryLease takes the lease of a lock, or returns false while another node has it.
func (s *sharedStorage) tryLease(ctx context.Context, name string) (bool, error) {
	l, err := s.shared.Lease(ctx, name)
	if err != nil || l == nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leases[name] = l
	return true, nil
}

// Unlock implements certmagic.Locker. The error is store.ErrLeaseLost when another node has got the lock before.
func (s *sharedStorage) Unlock(ctx context.Context, name string) error {
	s.mu.Lock()
	l := s.leases[name]
	delete(s.leases, name)
	s.mu.Unlock()
	if l == nil {
		return fmt.Errorf("certs: %s is not locked", name)
	}
	err := l.Release(ctx)
	return cmp.Or(err, s.locks.Unlock(ctx, name))
}

// RenewLockLease implements certmagic.LockLeaseRenewer. Leases are renewed in the background: here it only makes sure
// that the lock is still this node's. The error is store.ErrLeaseLost when it is not.
func (s *sharedStorage) RenewLockLease(ctx context.Context, name string, _ time.Duration) error {
	s.mu.Lock()
	l := s.leases[name]
	s.mu.Unlock()
	if l == nil {
		return fmt.Errorf("certs: %s is not locked", name)
	}
	return l.Renew(ctx)
}

func (s *sharedStorage) Store(ctx context.Context, key string, value []byte) error {
	return pathError("store", key, s.shared.PutFile(ctx, key, value))
}

func (s *sharedStorage) Load(ctx context.Context, key string) ([]byte, error) {
	files, err := s.shared.Files(ctx, key, true)
	if err == nil && (len(files) == 0 || files[0].Path != key) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, pathError("load", key, err)
	}
	return files[0].Content, nil
}

func (s *sharedStorage) Delete(ctx context.Context, key string) error {
	return pathError("delete", key, s.shared.RemoveFiles(ctx, key))
}

func (s *sharedStorage) Exists(ctx context.Context, key string) bool {
	waiting, cancel := context.WithTimeout(ctx, existsWithin)
	defer cancel()
	for {
		files, err := s.shared.Files(waiting, key, false)
		if err == nil {
			return len(files) > 0
		}
		if store.Sleep(waiting, leasePoll) != nil {
			return false
		}
	}
}

// List implements certmagic.Storage. Only certmagic's own issuer and its CleanStorage call List and Stat. Neither runs here.
func (s *sharedStorage) List(context.Context, string, bool) ([]string, error) {
	return nil, errors.ErrUnsupported
}

// Stat implements certmagic.Storage: see List.
func (s *sharedStorage) Stat(context.Context, string) (certmagic.KeyInfo, error) {
	return certmagic.KeyInfo{}, errors.ErrUnsupported
}

// pathError returns an error as those of files are: isUnusable knows it.
func pathError(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: key, Err: err}
}
