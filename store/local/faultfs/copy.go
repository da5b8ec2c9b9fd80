package faultfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Copied returns a copy of a directory, as a kill would leave it. While an engine has the directory open, Badger may
// create and remove files. A copy with some files from before such a change and others from after it would be a state that
// no kill leaves. So when the files or their sizes have changed meanwhile, the copy begins again.
func Copied(t *testing.T, dir string) string {
	t.Helper()
	for range 100 {
		before := Sizes(t, dir)
		generation, _ := os.ReadFile(filepath.Join(dir, "generation"))
		to := t.TempDir()
		err := Copy(dir, to)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		after, _ := os.ReadFile(filepath.Join(dir, "generation"))
		if err == nil && maps.Equal(before, Sizes(t, dir)) && bytes.Equal(generation, after) {
			return to
		}
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatalf("the files in %s change all the time", dir)
	return ""
}

// Copy copies the files in a directory and those below it. What is a hole, or was never written, is a hole in the copy:
// most of Badger's logs, and the spare files.
func Copy(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		}
		return copySparse(path, filepath.Join(to, name))
	})
}

func copySparse(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := out.Truncate(info.Size()); err != nil {
		return err
	}
	return EachWritten(in, func(start, end int64) error {
		_, errIn := in.Seek(start, io.SeekStart)
		_, errOut := out.Seek(start, io.SeekStart)
		if err := errors.Join(errIn, errOut); err != nil {
			return err
		}
		_, err := io.CopyN(out, in, end-start) // by the kernel
		return err
	})
}

// EachWritten calls use for each part of a sparse file that is not a hole. Holes read as zeros.
func EachWritten(f *os.File, use func(start, end int64) error) error {
	for end := int64(0); ; {
		start, err := unix.Seek(int(f.Fd()), end, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil // no more data
		}
		if err != nil {
			return err
		}
		if end, err = unix.Seek(int(f.Fd()), start, unix.SEEK_HOLE); err != nil {
			return err
		}
		if err := use(start, end); err != nil {
			return err
		}
	}
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
