package journal

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"mtagd/store/local/space"
)

// smallDisk mounts a file system of this size, which may end in other options of tmpfs. It skips the test where that is not permitted.
func smallDisk(t *testing.T, size string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("SKIPPED: no file system can be mounted here, so nothing is tested on a full disk: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// write writes a file of about this many bytes.
func write(t *testing.T, path string, size int) (content []byte) {
	t.Helper()
	content = bytes.Repeat([]byte("random"), size/6)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, content, 0o600)); err != nil {
		t.Fatal(err)
	}
	return content
}

// fillDisk fills the disk of a directory with a file.
func fillDisk(t *testing.T, dir string) {
	t.Helper()
	free, err := space.Free(dir)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err == nil {
		err = errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, free), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// hasSetAside reports whether there is a directory of set-aside files.
func hasSetAside(data string) bool {
	_, err := os.Stat(filepath.Join(data, "set-aside"))
	return err == nil
}

// What is lost is not replaced before there is a copy. A copy that does not fit leaves nothing behind.
func TestWithoutSpaceForACopyADamagedFileStaysAsItIs(t *testing.T) {
	data := smallDisk(t, "1m")
	path := filepath.Join(data, "events", "00001.mem")
	content := write(t, path, 500<<10)
	write(t, filepath.Join(data, "events", spareName), 300<<10)
	aside := &setAside{spare: spare{filepath.Join(data, "events", spareName)}, log: quiet}
	fillDisk(t, data)
	for range 2 {
		if err := aside.replace(path, []byte("corrected"), "", true); !space.IsFull(err) {
			t.Errorf("replace gives %v, want that the disk is full", err)
		}
		if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, content) {
			t.Error("the file was changed: ", err)
		}
		if hasSetAside(data) {
			t.Error("a part of a copy is left")
		}
	}
}

// A start that fails adds nothing, as the next one would too.
func TestWithoutSpaceForTheNewFileNothingIsLeftOfACopy(t *testing.T) {
	data := smallDisk(t, "1m")
	path := filepath.Join(data, "events", "00001.mem")
	content := write(t, path, 300<<10)
	aside := &setAside{spare: spare{filepath.Join(data, "events", spareName)}, log: quiet}
	if err := aside.replace(path, make([]byte, 600<<10), "", true); !space.IsFull(err) {
		t.Errorf("replace gives %v, want that the disk is full", err)
	}
	if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, content) {
		t.Error("the file was changed: ", err)
	}
	if files := names(t, filepath.Dir(path)); hasSetAside(data) || len(files) != 1 {
		t.Errorf("a copy is left: %v; in events/ are %q", hasSetAside(data), files)
	}
}

func TestACopyThatIsNeededMayUseTheSpareFile(t *testing.T) {
	data := smallDisk(t, "2m")
	path := filepath.Join(data, "events", "00001.mem")
	write(t, path, 500<<10)
	write(t, filepath.Join(data, "events", spareName), 700<<10)
	aside := &setAside{spare: spare{filepath.Join(data, "events", spareName)}, log: quiet}
	fillDisk(t, data)
	if err := aside.replace(path, []byte("corrected"), "", true); err != nil {
		t.Error(err)
	}
	if files := setAsideFiles(t, filepath.Dir(path)); len(files) == 0 || files[0] != "00001.mem" {
		t.Errorf("set aside are %q, want the log", files)
	}
}

// When nothing is lost, a full disk is no reason not to start, and a copy is no reason to use the spare file or the space that
// the journal needs.
func TestWithLittleSpaceNoCopyIsMadeOfAFileThatLosesNothing(t *testing.T) {
	data := smallDisk(t, "2m")
	path := filepath.Join(data, "events", "000001.sst")
	content := write(t, path, 100<<10)
	s := spare{filepath.Join(data, "events", spareName)}
	write(t, s.path, 2*spareStep)
	aside := &setAside{spare: s, log: quiet}
	for _, full := range []bool{false, true} {
		if full {
			fillDisk(t, data)
		}
		content = content[:len(content)/2]
		if err := aside.replace(path, content, "", false); err != nil {
			t.Error(err)
		}
		if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, content) {
			t.Errorf("%d bytes, want the corrected ones: %v", len(b), err)
		}
		if hasSetAside(data) || s.size() < spareStep/2 { // the new file may take a step
			t.Errorf("a copy was made: %v; the spare file has %d bytes", hasSetAside(data), s.size())
		}
	}
}

func TestOnAFullDiskAFileIsRemovedWhenNothingInItIsNeeded(t *testing.T) {
	data := smallDisk(t, "2m,nr_inodes=4") // the directories, two files, and no set-aside
	path := filepath.Join(data, "events", "KEYREGISTRY")
	write(t, path, 100)
	aside := &setAside{spare: spare{filepath.Join(data, "events", spareName)}, log: quiet}
	fillDisk(t, data)
	if err := aside.move(path, "", true); !space.IsFull(err) {
		t.Errorf("moving a file that is needed gives %v, want that the disk is full", err)
	}
	if err := aside.move(path, "", false); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the damaged file is still there")
	}
}

func TestUsedLengthLeavesOutTheZerosAtTheEnd(t *testing.T) {
	for _, size := range []int{0, 1, len(zeros) - 1, len(zeros), len(zeros) + 1, 3*len(zeros) + 7} {
		for _, used := range []int{0, 1, size / 2, size - len(zeros), size - len(zeros) + 1, size - 1, size} {
			if used < 0 || used > size {
				continue
			}
			b := make([]byte, size)
			if used > 0 {
				b[used-1] = 1
			}
			if got := usedLength(b); got != used {
				t.Errorf("the used length of %d bytes is %d, want %d", size, got, used)
			}
		}
	}
}
