package control

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mtagd/store/testenv"
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
	testenv.Check(t, os.MkdirAll(filepath.Join(dir, "lost+found"), 0o700))
	expect(Nothing)
	other := filepath.Join(dir, "notes.txt")
	testenv.Check(t, os.WriteFile(other, nil, 0o600))
	expect(OtherFiles)
	data, err := Open(dir, time.Now, quiet)
	testenv.Check(t, err)
	testenv.Check(t, data.Close())
	expect(ControlData)
	testenv.Check(t, os.Rename(filepath.Join(dir, fileName), filepath.Join(dir, copyName)))
	expect(ControlData)
	if got, err := Inspect(other); err == nil {
		t.Errorf("for a file instead of a directory, Inspect gives %d without an error", got)
	}
}

// A disk that is not mounted must not look like control data: Open would create a new store.
func TestInspectRefusesALinkToControlDataThatDoesNotExist(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(t.TempDir(), "control.db")
	testenv.Check(t, os.WriteFile(filepath.Join(dir, copyName), nil, 0o600)) // a copy alone does not change the answer
	testenv.Check(t, os.Symlink(target, filepath.Join(dir, "control.db")))
	if _, err := Inspect(dir); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("Inspect gives %v, want an error that names the symbolic link", err)
	}
	testenv.Check(t, os.WriteFile(target, nil, 0o600))
	if got, err := Inspect(dir); err != nil || got != ControlData {
		t.Errorf("for a link to control data, Inspect gives %d, %v; want %d", got, err, ControlData)
	}
}
