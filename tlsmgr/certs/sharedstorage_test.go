package certs

import (
	"context"
	"errors"
	"io/fs"
	"testing"
	"time"

	"github.com/caddyserver/certmagic"
	"github.com/google/uuid"
	"github.com/mholt/acmez/v3/acme"

	"mtagd/store"
	"mtagd/store/pgtest"
)

// Both kinds of storage do what certmagic expects of one.
func TestStorage(t *testing.T) {
	shared := openNode(t, pgtest.Database(t))
	t.Cleanup(func() {
		if err := shared.Close(); err != nil {
			t.Error(err)
		}
	})
	for name, s := range map[string]certmagic.Storage{
		"files":  newStorage(Config{Dir: t.TempDir()}),
		"shared": newStorage(Config{Shared: shared.(store.Shared)}),
	} {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			for key, value := range map[string]string{
				"certificates/ca/a.test/a.test.crt": "one", "certificates/ca/a.test/a.test.key": "\x00\xff", "certificates/ca/a.test-b/c": "two",
				"certificates/ca/b.test/b.test.crt": "three", "ocsp/x": "", "certificates/ca/a.test/a.test.json": "{}",
			} {
				if err := errors.Join(s.Store(ctx, key, []byte("before")), s.Store(ctx, key, []byte(value))); err != nil {
					t.Fatal(err)
				}
				if got, err := s.Load(ctx, key); err != nil || string(got) != value {
					t.Errorf("%s has %q, %v", key, got, err)
				}
			}
			for _, missing := range []string{"certificates/ca/c.test", "certificates/ca/a", "ocsp/x/y", "certificate"} {
				_, loading := s.Load(ctx, missing)
				if missing == "ocsp/x/y" { // below a file
					if loading == nil || s.Exists(ctx, missing) && name == "shared" {
						t.Errorf("%s: %v", missing, loading)
					}
					continue
				}
				if !errors.Is(loading, fs.ErrNotExist) || s.Exists(ctx, missing) {
					t.Errorf("%s: %v, exists %v", missing, loading, s.Exists(ctx, missing))
				}
				if err := s.Delete(ctx, missing); err != nil {
					t.Errorf("%s cannot be deleted: %v", missing, err)
				}
			}
			if _, err := s.Load(ctx, "certificates/ca"); err == nil {
				t.Error("a directory can be loaded")
			}
			if err := errors.Join(s.Delete(ctx, "certificates/ca/a.test"), s.Delete(ctx, "ocsp/x")); err != nil {
				t.Error(err)
			}
			if s.Exists(ctx, "certificates/ca/a.test") || s.Exists(ctx, "ocsp/x") || !s.Exists(ctx, "certificates/ca/a.test-b/c") || !s.Exists(ctx, "certificates/ca") {
				t.Error("Delete has deleted too much, or too little")
			}
		})
	}
}

func TestOneNodeAtATimeHasALock(t *testing.T) {
	n := &nodes{certWorld: &certWorld{T: t}, database: pgtest.Database(t)}
	storages := make([]*sharedStorage, 2)
	for i := range storages {
		engine := openNode(t, n.database)
		t.Cleanup(func() {
			if err := engine.Close(); err != nil {
				t.Error(err)
			}
		})
		storages[i] = newStorage(Config{Shared: engine.(store.Shared)}).(*sharedStorage)
	}
	a, b := storages[0], storages[1]
	ctx := t.Context()
	if err := a.Lock(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	for _, s := range storages {
		if got, err := s.TryLock(ctx, "x"); got || err != nil {
			t.Fatalf("locked twice, %v", err)
		}
	}
	if got, err := b.TryLock(ctx, "y"); !got || err != nil {
		t.Errorf("another name cannot be locked: %v", err)
	}
	ended, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if err := b.Lock(ended, "x"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait that has ended returns %v", err)
	}
	waiting := make(chan error)
	go func() { waiting <- b.Lock(ctx, "x") }()
	if err := errors.Join(a.RenewLockLease(ctx, "x", time.Second), a.Unlock(ctx, "x"), <-waiting); err != nil {
		t.Fatal(err)
	}

	// b dies, or is away for too long.
	if got, err := a.TryLock(ctx, "x"); got || err != nil {
		t.Fatalf("locked twice, %v", err)
	}
	n.exec("UPDATE lease SET expires = clock_timestamp() - interval '1 s' WHERE name = 'x'")
	if err := a.Lock(ctx, "x"); err != nil {
		t.Fatal(err)
	}
	if err := b.RenewLockLease(ctx, "x", time.Second); !errors.Is(err, store.ErrLeaseLost) {
		t.Errorf("a lock that was lost is renewed: %v", err)
	}
	if err := b.Unlock(ctx, "x"); !errors.Is(err, store.ErrLeaseLost) {
		t.Errorf("a lock that was lost is released: %v", err)
	}
	if err := errors.Join(a.RenewLockLease(ctx, "x", time.Second), a.Unlock(ctx, "x"), b.Unlock(ctx, "y")); err != nil {
		t.Error(err)
	}
}

// losingStorage loses all locks in Load.
type losingStorage struct {
	*sharedStorage
	lose func()
}

func (s losingStorage) Load(ctx context.Context, key string) ([]byte, error) {
	text, err := s.sharedStorage.Load(ctx, key)
	s.lose()
	return text, err
}

// A node that was away replaces no account key: another node may have registered it.
func TestAccountKeyIsStoredUnderTheLockOnly(t *testing.T) {
	n := &nodes{certWorld: &certWorld{T: t}, database: pgtest.Database(t)}
	engine := openNode(t, n.database)
	t.Cleanup(func() {
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	storage := losingStorage{newStorage(Config{Shared: engine.(store.Shared)}).(*sharedStorage), func() {
		n.exec("UPDATE lease SET holder = $1", uuid.New())
	}}
	a := newAccount(Config{}, &acme.Client{}, storage, "ca")
	if _, err := a.register(t.Context()); !errors.Is(err, store.ErrLeaseLost) {
		t.Errorf("registering returns %v", err)
	}
	if storage.Exists(t.Context(), a.keyFile) {
		t.Error("the key was stored")
	}
}
