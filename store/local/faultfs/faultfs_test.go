package faultfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"mtagd/store/testenv"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

func write(t *testing.T, path, content string, sync bool) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	testenv.Check(t, err)
	if _, err := f.WriteString(content); err != nil {
		t.Fatal(err)
	}
	if sync {
		testenv.Check(t, f.Sync())
	}
	testenv.Check(t, f.Close())
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		return err.(*os.PathError).Err.Error()
	}
	return string(b)
}

func TestAPowerCutTakesWhatWasNotSynced(t *testing.T) {
	d := New(t)
	path := func(name string) string { return filepath.Join(d.Dir, name) }
	write(t, path("synced"), "one", true)
	write(t, path("changed"), "one", true)
	write(t, path("changed"), "two, longer", false)
	write(t, path("created"), "one", false)
	write(t, path("removed"), "one", true)
	write(t, path("replaced"), "one", true)
	write(t, path("after"), "one", true)
	write(t, path("new"), "two", true)
	testenv.Check(t, errors.Join(os.Remove(path("removed")), os.Rename(path("new"), path("replaced"))))
	d.Cut()
	write(t, path("after"), "two", true)
	write(t, path("late"), "two", true)
	d.Restore(0, 1)
	for name, want := range map[string]string{
		"synced": "one", "changed": "one", "removed": "one", "replaced": "one", "new": "two", "after": "one",
		"created": syscall.ENOENT.Error(), "late": syscall.ENOENT.Error(),
	} {
		if got := read(t, path(name)); got != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
}

func TestAllOfItMaySurvive(t *testing.T) {
	d := New(t)
	write(t, filepath.Join(d.Dir, "created"), "one", false)
	d.Cut()
	d.Restore(1, 1)
	if got := read(t, filepath.Join(d.Dir, "created")); got != "one" {
		t.Errorf("created has %q", got)
	}
}

// A directory that was removed for good takes along what was in it, also what was removed before.
func TestARemovedDirectory(t *testing.T) {
	d := New(t)
	dir := filepath.Join(d.Dir, "dir")
	testenv.Check(t, os.Mkdir(dir, 0o700))
	write(t, filepath.Join(dir, "file"), "one", true)
	testenv.Check(t, os.RemoveAll(dir))
	root, err := os.Open(d.Dir)
	testenv.Check(t, err)
	testenv.Check(t, errors.Join(root.Sync(), root.Close()))
	d.Cut()
	d.Restore(0, 1)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is back: %v", err)
	}
}

func TestRules(t *testing.T) {
	d := New(t)
	path := filepath.Join(d.Dir, "file")
	write(t, path, "abc", true)
	d.Fail(Rule{Op: Read, Files: "f*", Byte: 1, Bit: 0})
	if got := read(t, path); got != "acc" {
		t.Errorf("with a flipped bit the file has %q", got)
	}
	if read(t, filepath.Join(d.Base, "file")) != "abc" {
		t.Error("the bit was flipped on the disk")
	}
	d.Fail(Rule{Op: Sync, Files: "*", Skip: 1, Count: 1, Errno: syscall.ENOSPC})
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	testenv.Check(t, err)
	defer f.Close()
	for i, want := range []error{nil, syscall.ENOSPC, nil} {
		if _, err := f.WriteAt([]byte("x"), 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Sync(); !errors.Is(err, want) {
			t.Errorf("sync %d gives %v, want %v", i, err, want)
		}
	}
	if n := d.Failed(); n != 1 {
		t.Errorf("%d operations failed, want 1", n)
	}
}
