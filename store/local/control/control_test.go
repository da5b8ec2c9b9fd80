package control

import (
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/store"
)

var quiet = slog.New(slog.DiscardHandler)

// openHere opens the control data in a directory. The test closes it.
func openHere(t *testing.T, dir string) *Data {
	t.Helper()
	d, err := Open(dir, time.Now, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// open is openHere for data that is closed at the end of the test.
func open(t *testing.T, dir string) *Data {
	t.Helper()
	d := openHere(t, dir)
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestAChangeOnAFullDiskIsUnavailable(t *testing.T) {
	for _, full := range []error{unix.ENOSPC, unix.EDQUOT} {
		d := open(t, t.TempDir())
		err := d.update(t.Context(), func(c *change) error {
			c.publish = append(c.publish, func() { t.Error("the change was published") })
			return full
		})
		if store.KindOf(err) != store.KindUnavailable {
			t.Errorf("when the disk reports %q, a change gives %v; want KindUnavailable", full, err)
		}
	}
}
