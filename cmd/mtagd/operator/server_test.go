package operator

import (
	"os"
	"path/filepath"
	"testing"
)

// Only the owner may open the operator socket.
func TestSocketMode(t *testing.T) {
	data := t.TempDir()
	l, err := Listen(data)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(data, socketName))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, mode %v", err, info.Mode())
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(data, socketName)); !os.IsNotExist(err) {
		t.Errorf("Close has not removed the socket: %v", err)
	}
}
