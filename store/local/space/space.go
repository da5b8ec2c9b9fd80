// Package space is about the space of a disk: how much is free, and which errors say that there is none.
package space

import (
	"errors"

	"golang.org/x/sys/unix"
)

// Free returns the bytes that users other than root may still write to the file system of a directory.
func Free(dir string) (bytes int64, err error) {
	d, err := OfDisk(dir)
	return d.Free, err
}

// Disk is the file system of a directory.
type Disk struct {
	Free, Size int64 // bytes; Free is what users other than root may still write
	Files      int64 // how many can still be created; large on a file system without a limit
}

// OfDisk returns what is known of the file system of a directory.
func OfDisk(dir string) (d Disk, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return d, err
	}
	d = Disk{int64(s.Bavail) * s.Bsize, int64(s.Blocks) * s.Bsize, int64(s.Ffree)}
	if s.Files == 0 { // the file system does not count them
		d.Files = 1 << 32
	}
	return d, nil
}

// IsFull reports whether an error says that there is no space: the disk is full, or the user's quota is used up.
func IsFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
