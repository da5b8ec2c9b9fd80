package journal

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/store/local/space"
)

// setAside keeps copies of damaged files that a start is about to change or remove. They are in one directory for each start,
// beside the journal's directory: set-aside/TIME/. Its file "reasons" has a line for each.
type setAside struct {
	spare spare
	log   *slog.Logger
	dir   string // "" until the first file
}

// replace replaces a damaged file, and keeps a copy. When nothing is lost, and the disk has so little space that the copy could
// stop the service, there is no copy.
func (s *setAside) replace(path string, content []byte, reason string, lost bool) error {
	kept, err := s.keep(path, lost)
	if err != nil {
		return fmt.Errorf("set %s aside: %w", path, err)
	}
	if err := s.spare.withSpace(func() error { return ReplaceFile(path, content) }); err != nil {
		if kept != "" {
			s.discard(kept) // or each start would add a copy
		}
		return err
	}
	s.note(path, kept, reason)
	return nil
}

// move moves a damaged file out of the way. When nothing in it is needed, and the disk is full, move removes it.
func (s *setAside) move(path, reason string, needed bool) error {
	var kept string
	try := func() error {
		if err := s.begin(path); err != nil {
			return err
		}
		kept = filepath.Join(s.dir, filepath.Base(path))
		return os.Rename(path, kept)
	}
	var err error
	if needed {
		err = s.spare.withSpace(try)
	} else {
		err = try()
	}
	switch {
	case errors.Is(err, unix.EXDEV): // events/ is a file system of its own
		if kept, err = s.keep(path, needed); err == nil {
			err = errors.Join(os.Remove(path), SyncPath(filepath.Dir(path)))
		}
	case space.IsFull(err) && !needed:
		kept, err = "", os.Remove(path)
	}
	s.prune()
	if err != nil {
		return fmt.Errorf("set %s aside: %w", path, err)
	}
	s.note(path, kept, reason)
	return nil
}

// keep copies a file, syncs the copy, and returns its path. A copy that is needed may use the space of the spare file. Of
// another one keep returns "" when there is little space.
func (s *setAside) keep(path string, needed bool) (kept string, err error) {
	used, err := usedEnd(path, math.MaxInt64)
	if err != nil {
		return "", err
	}
	try := func() error {
		if err := s.begin(path); err != nil {
			return err
		}
		kept = filepath.Join(s.dir, filepath.Base(path))
		if err := copyFile(path, kept, used); err != nil {
			s.discard(kept)
			return err
		}
		return SyncPath(s.dir)
	}
	if needed {
		return kept, s.spare.withSpace(try)
	}
	free, err := space.Free(dataDir(path))
	if err == nil && free < minFreeAgain+used {
		return "", nil
	}
	if err := try(); !space.IsFull(err) {
		return kept, err
	}
	return "", nil
}

// copyFile copies a file to a new one, and syncs that. The zeros behind the used bytes become a hole, which takes no space.
func copyFile(path, to string, used int64) error {
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, from, used)
	return errors.Join(err, f.Truncate(info.Size()), f.Sync(), f.Close())
}

// dataDir returns the directory in which the journal's directory is.
func dataDir(path string) string { return filepath.Dir(filepath.Dir(path)) }

// begin creates the directory of this start. When a file of this name is there already, it creates another one.
func (s *setAside) begin(path string) error {
	if s.dir != "" {
		if _, err := os.Lstat(filepath.Join(s.dir, filepath.Base(path))); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
	}
	dir := filepath.Join(dataDir(path), "set-aside", time.Now().UTC().Format("20060102T150405.000000Z"))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	s.dir = dir
	return errors.Join(SyncPath(dataDir(path)), SyncPath(filepath.Dir(dir)))
}

// discard removes a copy.
func (s *setAside) discard(kept string) {
	if err := os.Remove(kept); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Warn("a copy of a damaged file cannot be removed", "copy", kept, "error", err)
	}
	s.prune()
}

// prune removes the directory of this start when it is empty.
func (s *setAside) prune() {
	if os.Remove(s.dir) == nil {
		_ = os.Remove(filepath.Dir(s.dir)) // it may have copies of earlier starts
		s.dir = ""
	}
}

// note tells the operator what was done. kept is "" when there is no copy.
func (s *setAside) note(path, kept, reason string) {
	if kept == "" {
		s.log.Warn("a damaged file was corrected or removed. The disk is nearly full, so there is no copy of it", "file", path, "reason", reason)
		return
	}
	s.log.Warn("a damaged file was set aside", "file", path, "reason", reason, "copy", kept)
	f, err := os.OpenFile(filepath.Join(s.dir, "reasons"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintf(f, "%s: %s\n", filepath.Base(path), reason)
		err = errors.Join(err, f.Sync(), f.Close(), SyncPath(s.dir))
	}
	if err != nil {
		s.log.Warn("the reason cannot be written", "file", filepath.Join(s.dir, "reasons"), "error", err)
	}
}

// SyncPath syncs a file or directory.
func SyncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// ReplaceFile replaces a file, or creates it, so that after a power cut it is the old or the new one.
func ReplaceFile(path string, content []byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	return errors.Join(os.Rename(path+".new", path), SyncPath(filepath.Dir(path)))
}

// rewrite writes a part of a file again, as it is, and syncs it. After a failed write the page cache may have what the disk
// does not have, and would never write it. Parts that are zero, and may be holes, are left out.
func rewrite(path string, from int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	block := make([]byte, 64<<10)
	for at := from &^ int64(len(block)-1); ; at += int64(len(block)) {
		n, err := f.ReadAt(block, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if !isZero(block[:n]) {
			if _, err := f.WriteAt(block[:n], at); err != nil {
				return err
			}
		}
		if n < len(block) {
			return f.Sync()
		}
	}
}

// usedLength returns the length of b without the zeros at its end. Most of a log is zeros, which it compares in blocks.
func usedLength(b []byte) int {
	for len(b) >= len(zeros) && bytes.Equal(b[len(b)-len(zeros):], zeros[:]) {
		b = b[:len(b)-len(zeros)]
	}
	return len(bytes.TrimRight(b, "\x00"))
}

var zeros [4096]byte

func isZero(b []byte) bool { return usedLength(b) == 0 }
