package faultfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Copied returns a copy of a directory, as a kill would leave it. While an engine has the directory open, Badger may
// create and remove files. A copy with some files from before such a change and others from after it would be a state that
// no kill leaves. So when the files or their sizes have changed meanwhile, the copy begins again.
func Copied(t *testing.T, dir string) string {
	t.Helper()
	var err error
	for range 100 {
		before := Sizes(t, dir)
		generation, _ := os.ReadFile(filepath.Join(dir, "generation"))
		to := t.TempDir()
		err = Copy(dir, to)
		after, _ := os.ReadFile(filepath.Join(dir, "generation"))
		if err == nil && maps.Equal(before, Sizes(t, dir)) && bytes.Equal(generation, after) {
			return to
		}
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatalf("the files in %s change all the time, or cannot be copied: %v", dir, err)
	return ""
}

// Copy copies a file, or the files in a directory and those below it. Zeros become holes, as in the spare files.
func Copy(from, to string) error {
	if out, err := exec.Command("cp", "-RT", "--sparse=always", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// Sizes returns the size of each file in a directory and those below it. A file that is removed meanwhile may be missing.
func Sizes(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	sizes := map[string]int64{}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				sizes[path] = info.Size()
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return sizes
}
