package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// diskSize is that of a cluster's servers. It is for the data of a test of hours, with the log that is kept for standbys.
const diskSize = 2 << 30

// ErrNoDisk is for a server that has no disk of its own: to mount one, the test must run as root.
var ErrNoDisk = errors.New("the server has no disk of its own")

// mountDisk gives the server a disk of its own in memory, if that is permitted. It is unmounted by remove, and when this
// process ends however that is.
func (s *Server) mountDisk() error {
	err := unix.Mount("tmpfs", s.dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=0755", diskSize))
	if errors.Is(err, unix.EPERM) {
		return nil
	}
	if err == nil {
		s.unmount, err = atEnd("umount -l " + s.dir + "; rmdir " + s.dir + " 2>/dev/null; true")
	}
	return err
}

// FillDisk leaves nothing free on the server's disk. free makes room again, and waits until the server accepts connections,
// or starts it if it has ended.
func (s *Server) FillDisk(ctx context.Context) (free func() error, err error) {
	if s.unmount == nil {
		return nil, ErrNoDisk
	}
	name := filepath.Join(s.dir, "filler")
	f, err := os.Create(name)
	if err != nil {
		return nil, err
	}
	free = func() error {
		if err := os.Remove(name); err != nil {
			return err
		}
		if err := s.await(); err == nil || ctx.Err() != nil {
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
	err = errors.Join(unix.Statfs(s.dir, &disk), f.Close())
	if err == nil && disk.Bavail > 16 {
		err = fmt.Errorf("%d blocks are free", disk.Bavail)
	}
	return free, err
}
