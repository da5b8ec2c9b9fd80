// Package space is about the space of a disk: how much is free, and which errors say that there is none.
package space

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Free returns the bytes that users other than root may still write to the file system of a directory.
func Free(dir string) (bytes int64, err error) {
	bytes, _, err = FreeWithFiles(dir)
	return bytes, err
}

// OfDisk returns the same as Free, and the size of the file system in bytes.
func OfDisk(dir string) (free, total int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, err
	}
	return int64(s.Bavail) * s.Bsize, int64(s.Blocks) * s.Bsize, nil
}

// FreeWithFiles returns the same as Free, and how many files can still be created. On a file system without a limit, files
// is large.
func FreeWithFiles(dir string) (bytes, files int64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return 0, 0, err
	}
	files = int64(s.Ffree)
	if s.Files == 0 { // the file system does not count them
		files = 1 << 32
	}
	return int64(s.Bavail) * s.Bsize, files, nil
}

// IsFull reports whether an error says that there is no space: the disk is full, or the user's quota is used up.
func IsFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
