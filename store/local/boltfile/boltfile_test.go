package boltfile

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	bolt "go.etcd.io/bbolt"

	"mtagd/store/local/codec"
	"mtagd/store/testenv"
)

// When its meta pages are lost, bbolt panics and keeps its locks. Nobody waits for these, and the file can be opened again.
func TestLostMetaPagesHoldUpNobody(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	things := []byte("things")
	db, err := open(path, bolt.Options{}, things)
	testenv.Check(t, err)
	sound, err := os.ReadFile(path)
	testenv.Check(t, err)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	testenv.Check(t, err)
	defer f.Close()
	_, err = f.WriteAt(make([]byte, 2*os.Getpagesize()), 0)
	testenv.Check(t, err)
	var all sync.WaitGroup
	for range 10 {
		for _, transaction := range []func(func(*bolt.Tx) error) error{db.View, db.Update} {
			all.Go(func() {
				if err := CatchDamage(path, func() error { return transaction(func(*bolt.Tx) error { return nil }) }); !errors.Is(err, codec.ErrCorrupt) {
					t.Errorf("a transaction: %v, want damage", err)
				}
			})
		}
	}
	all.Wait()
	if err := db.Close(); !errors.Is(err, codec.ErrCorrupt) {
		t.Errorf("close: %v, want damage", err)
	}
	_, err = f.WriteAt(sound, 0)
	testenv.Check(t, err)
	db, err = open(path, bolt.Options{}, things)
	testenv.Check(t, err)
	testenv.Check(t, db.Close())
}
