package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"mtagd/store/pgtest"
)

// serverDiskSize is for the data of a test of hours, with the log that is kept for standbys.
const serverDiskSize = 2 << 30

// errNoDisk is for a server that has no disk of its own: to mount one, the test must run as root.
var errNoDisk = errors.New("the server has no disk of its own")

// serverDisk is a disk in memory.
type serverDisk struct {
	dir     string
	unmount func() error // this process calls it when it ends, however that is
}

// mountServerDisk returns the zero serverDisk if to mount one is not permitted.
func mountServerDisk() (d serverDisk, err error) {
	dir, err := os.MkdirTemp("", "chaos")
	if err != nil {
		return d, err
	}
	err = unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", serverDiskSize))
	if errors.Is(err, unix.EPERM) {
		return d, os.Remove(dir)
	}
	if err != nil {
		return d, errors.Join(err, os.Remove(dir))
	}
	d.dir = dir
	d.unmount, err = pgtest.AtEnd("umount -l " + dir + "; rmdir " + dir + " 2>/dev/null; true")
	return d, err
}

// fillDisk leaves nothing free on the primary's disk. free makes room again, and waits until the server accepts connections,
// or starts it if it has ended.
func (c *cluster) fillDisk(ctx context.Context) (free func() error, err error) {
	s, dir := c.servers[c.primary], c.disks[c.primary].dir
	if dir == "" {
		return nil, errNoDisk
	}
	name := filepath.Join(dir, "filler")
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	free = func() error {
		if err := os.Remove(name); err != nil {
			return err
		}
		if err := s.Await(); err == nil || ctx.Err() != nil {
			return err
		}
		return s.Start()
	}
	var disk unix.Statfs_t
	for piece := int64(64 << 20); piece >= 4<<10; {
		info, err := f.Stat()
		if err == nil {
			err = unix.Fallocate(int(f.Fd()), 0, info.Size(), piece)
		}
		if errors.Is(err, unix.ENOSPC) {
			piece /= 4
		} else if err != nil {
			return nil, errors.Join(err, f.Close(), free())
		}
	}
	err = errors.Join(unix.Statfs(dir, &disk), f.Close())
	if err == nil && disk.Bavail > 16 {
		err = fmt.Errorf("%d blocks are free", disk.Bavail)
	}
	return free, err
}
