package journal

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"
)

// setAside keeps copies of files that are about to be changed or removed because of damage. They are in a directory of
// this start, beside the journal's directory: set-aside/TIME/. Its file "reasons" has a line for each.
type setAside struct {
	dir string // "" until the first file
	log *slog.Logger
}

// copy copies a file, and syncs the copy.
func (s *setAside) copy(path, reason string) error {
	if err := s.begin(path); err != nil {
		return err
	}
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(filepath.Join(s.dir, filepath.Base(path)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	if err := errors.Join(err, to.Sync(), to.Close()); err != nil {
		return fmt.Errorf("set %s aside: %w", path, err)
	}
	return s.note(path, reason)
}

// move moves a file there.
func (s *setAside) move(path, reason string) error {
	if err := s.begin(path); err != nil {
		return err
	}
	if err := os.Rename(path, filepath.Join(s.dir, filepath.Base(path))); err != nil {
		return err
	}
	return s.note(path, reason)
}

func (s *setAside) begin(path string) error {
	if s.dir != "" {
		return nil
	}
	dir := filepath.Join(filepath.Dir(filepath.Dir(path)), "set-aside", time.Now().UTC().Format("20060102T150405.000000Z"))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	s.dir = dir
	return errors.Join(SyncPath(filepath.Dir(filepath.Dir(dir))), SyncPath(filepath.Dir(dir)))
}

func (s *setAside) note(path, reason string) error {
	f, err := os.OpenFile(filepath.Join(s.dir, "reasons"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s: %s\n", filepath.Base(path), reason)
	s.log.Warn("a damaged file was set aside", "file", path, "reason", reason, "copy", filepath.Join(s.dir, filepath.Base(path)))
	return errors.Join(err, f.Sync(), f.Close(), SyncPath(s.dir))
}

// SyncPath syncs a file or directory.
func SyncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// replaceFile replaces a file, or creates it, so that after a power cut it is the old or the new one.
func replaceFile(path string, content []byte) error {
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
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

func isZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
