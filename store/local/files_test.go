package local

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/cespare/xxhash/v2"
	"golang.org/x/sys/unix"

	"mtagd/store/local/faultfs"
)

// What copies directories, as a kill would leave them.
var copied, copyFiles, sizes = faultfs.Copied, faultfs.Copy, faultfs.Sizes

// fileSums returns a checksum of the content of each file in a directory, except Badger's locks.
func fileSums(t *testing.T, dir string) map[string]uint64 {
	t.Helper()
	sums := map[string]uint64{}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || d.Name() == "LOCK" {
			return err
		}
		sums[path], err = contentSum(path)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return sums
}

// contentSum covers a file's size, and its blocks with other bytes than zeros.
func contentSum(path string) (uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	sum, block := xxhash.New(), make([]byte, 4096)
	fmt.Fprintln(sum, info.Size())
	err = eachWritten(f, func(start, end int64) error {
		for at := start; at < end; at += int64(len(block)) {
			n, err := f.ReadAt(block[:min(end-at, int64(len(block)))], at)
			if err != nil {
				return err
			}
			if used := bytes.TrimRight(block[:n], "\x00"); len(used) > 0 {
				fmt.Fprintf(sum, "%d %s\n", at, used)
			}
		}
		return nil
	})
	return sum.Sum64(), err
}

// eachWritten calls use for each part of a sparse file that is not a hole. Holes read as zeros.
func eachWritten(f *os.File, use func(start, end int64) error) error {
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
