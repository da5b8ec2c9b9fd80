package boltfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
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
		nothing := func(*bolt.Tx) error { return nil }
		for _, transaction := range []func() error{
			func() error { return db.View(nothing) },
			func() error { return CatchDamage(path, func() error { return db.Update(nothing) }) },
		} {
			all.Go(func() {
				if err := transaction(); !errors.Is(err, codec.ErrCorrupt) {
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
	if err := db.View(func(*bolt.Tx) error { panic("a damaged page") }); !errors.Is(err, codec.ErrCorrupt) || !strings.Contains(err.Error(), "a.db") {
		t.Errorf("a panic while View reads: %v, want damage of a.db", err)
	}
	testenv.Check(t, db.Close())
}
