package control

import (
	"context"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"mtagd/store"
)

func TestAChangeOnAFullDiskIsUnavailable(t *testing.T) {
	d, err := Open(t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, full := range []error{unix.ENOSPC, unix.EDQUOT} {
		err := d.update(context.Background(), func(*bolt.Tx) error { return full }, func() { t.Error("the change was published") })
		if store.KindOf(err) != store.KindUnavailable {
			t.Errorf("when the disk reports %q, a change gives %v; want KindUnavailable", full, err)
		}
	}
}
