package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/store"
	"mtagd/store/local/durable"
)

// directory is a Destination in a file system.
type directory struct {
	path   string
	create bool
}

func (d directory) String() string { return d.path }

func (d directory) file(name string) string { return filepath.Join(d.path, filepath.FromSlash(name)) }

// Put implements Destination.
func (d directory) Put(ctx context.Context, name string, content []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	to := d.file(name)
	if err := d.makeDir(path.Dir(name)); err != nil {
		return err
	}
	return durable.ReplaceFile(to, content)
}

// makeDir creates a directory below the destination, and syncs the ones above it when they have changed.
func (d directory) makeDir(name string) error {
	at := d.path
	if d.create {
		if err := os.Mkdir(at, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "." {
			continue
		}
		below := filepath.Join(at, part)
		err := os.Mkdir(below, 0o700)
		if err == nil {
			err = durable.SyncPath(at)
		} else if errors.Is(err, fs.ErrExist) {
			err = nil
		}
		if err != nil {
			return err
		}
		at = below
	}
	return nil
}

// Get implements Destination.
func (d directory) Get(ctx context.Context, name string, limit int64) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(d.file(name), os.O_RDONLY|unix.O_NONBLOCK, 0) // a named pipe would wait for a writer
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", f.Name())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	content, err := io.ReadAll(io.LimitReader(f, limit))
	return content, errors.Join(err, f.Close())
}

// List implements Destination.
func (d directory) List(ctx context.Context, prefix string) (found []Stored, err error) {
	if _, err := os.Stat(d.path); err != nil {
		if d.create && errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	err = filepath.WalkDir(d.file(prefix), func(file string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // or removed meanwhile
			return nil
		}
		if err != nil || entry.IsDir() {
			return errors.Join(err, ctx.Err())
		}
		info, err := entry.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		name, err := filepath.Rel(d.path, file)
		found = append(found, Stored{filepath.ToSlash(name), info.Size()})
		return err
	})
	return found, err
}

// Delete implements Destination. It also removes the directories above the file that become empty.
func (d directory) Delete(_ context.Context, name string) error {
	if err := os.Remove(d.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for dir := path.Dir(name); strings.Contains(dir, "/"); dir = path.Dir(dir) {
		if os.Remove(d.file(dir)) != nil {
			break // it is not empty
		}
	}
	return nil
}

// Lock implements Destination. The lock of a backup that was killed is gone.
func (d directory) Lock(ctx context.Context, data string) (unlock func() error, err error) {
	if err := d.makeDir(data); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(d.file(data+"/lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(lockWait); ; {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f.Close, nil
		}
		if errors.Is(err, unix.EWOULDBLOCK) && time.Now().After(deadline) {
			err = ErrLocked
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("%s: %w", f.Name(), err), f.Close())
		}
		if err := store.Sleep(ctx, 100*time.Millisecond); err != nil {
			return nil, errors.Join(err, f.Close())
		}
	}
}
