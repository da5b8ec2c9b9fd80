package control

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestInspect(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	expect := func(want Contents) {
		t.Helper()
		if got, err := Inspect(dir); err != nil || got != want {
			t.Errorf("Inspect gives %d, %v; want %d", got, err, want)
		}
	}
	expect(NoDirectory)
	if err := os.MkdirAll(filepath.Join(dir, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	expect(Nothing)
	other := filepath.Join(dir, "notes.txt")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	expect(OtherFiles)
	data, err := Open(dir, time.Now, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if err := data.Close(); err != nil {
		t.Fatal(err)
	}
	expect(ControlData)
	if got, err := Inspect(other); err == nil {
		t.Errorf("for a file instead of a directory, Inspect gives %d without an error", got)
	}
}

// A disk that is not mounted must not look like control data: Open would create a new store.
func TestInspectRefusesALinkToControlDataThatDoesNotExist(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(t.TempDir(), "control.db")
	if err := os.Symlink(target, filepath.Join(dir, "control.db")); err != nil {
		t.Fatal(err)
	}
	if _, err := Inspect(dir); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("Inspect gives %v, want an error that names the symbolic link", err)
	}
	if err := os.WriteFile(target, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := Inspect(dir); err != nil || got != ControlData {
		t.Errorf("for a link to control data, Inspect gives %d, %v; want %d", got, err, ControlData)
	}
}
