package local

import (
	"os"
	"path/filepath"
	"testing"
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
	control, err := OpenControl(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := control.Close(); err != nil {
		t.Fatal(err)
	}
	expect(ControlData)
	if got, err := Inspect(other); err == nil {
		t.Errorf("for a file instead of a directory, Inspect gives %d without an error", got)
	}
}
