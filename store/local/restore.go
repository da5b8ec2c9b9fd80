package local

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"

	"mtagd/store/local/archive"
	"mtagd/store/local/backup"
	"mtagd/store/local/codec"
	"mtagd/store/local/control"
	"mtagd/store/local/durable"
	"mtagd/store/local/journal"
)

// restoringDir is where a restore writes, below the data directory. As long as it exists, the restore is not finished, and the
// data directory cannot be opened.
const restoringDir = "restoring"

// restoredFiles are moved from restoringDir to the data directory when the restore is complete, the control data last.
var restoredFiles = []string{"events", "archive", "index.db", certificatesDir, "control.db"}

// ErrNotEmpty is the error of a restore into a directory with other files.
var ErrNotEmpty = errors.New("is not empty: a restore needs a new directory")

// Restore fills a new data directory with what read passes to a target. It opens the result as a server does, which builds
// the index, and compares the number of events with what read has returned. Only then the data directory can be opened. A
// restore that was cut off leaves a directory that cannot be opened; another Restore begins again.
func Restore(ctx context.Context, dir string, opt Options, read func(backup.Target) (backup.Count, error)) (events int, err error) {
	opt = opt.withDefaults()
	at := filepath.Join(dir, restoringDir)
	if err := prepareRestore(dir, at); err != nil {
		return 0, err
	}
	t := &target{dir: at, first: math.MaxUint64}
	want, err := t.fill(opt, read)
	if err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if events, err = checkRestored(ctx, at, opt); err != nil {
		return events, err
	}
	// The backup's number is exact unless chunks were deleted or rewritten after an older point, blocks of the archive were
	// replaced, or chunks were archived and not yet deleted. Then it counts some events that are not restored, or counts them
	// twice. So it may be too high, but never too low.
	if want.Deletions == 0 && !t.archive.Replaced && t.boundary < t.first && events != want.Events || events > want.Events {
		return events, fmt.Errorf("the restored directory has %d events, but the backup %d", events, want.Events)
	}
	return events, publish(dir, at)
}

// prepareRestore creates the directory, and removes what a restore that was cut off has left behind.
func prepareRestore(dir, at string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	found, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	_, err = os.Stat(at)
	again := err == nil
	for _, entry := range found {
		if name := entry.Name(); name != "lost+found" && !(again && isRestored(name)) {
			return fmt.Errorf("%s %w", dir, ErrNotEmpty)
		}
	}
	if again {
		for _, name := range restoredFiles {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
		if err := os.RemoveAll(at); err != nil { // last: until then the directory is known as a restore that was cut off
			return err
		}
	}
	if err := os.Mkdir(at, 0o700); err != nil {
		return err
	}
	return durable.SyncPath(dir)
}

func isRestored(name string) bool {
	return name == restoringDir || slices.Contains(restoredFiles, name)
}

// target writes what is restored. It implements backup.Target.
type target struct {
	dir      string
	control  *os.File
	events   *journal.Writer
	archive  *archive.Writer
	boundary uint64 // of the archive
	first    uint64 // the smallest number of a chunk
}

func (t *target) fill(opt Options, read func(backup.Target) (backup.Count, error)) (want backup.Count, err error) {
	if t.control, err = os.OpenFile(filepath.Join(t.dir, "control.db"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600); err != nil {
		return want, err
	}
	if t.events, err = journal.Create(filepath.Join(t.dir, "events"), opt.Log); err != nil {
		return want, errors.Join(err, t.control.Close())
	}
	if t.archive, err = archive.Create(filepath.Join(t.dir, "archive"), opt.Log); err != nil {
		return want, errors.Join(err, t.control.Close(), t.events.Close())
	}
	want, err = read(t)
	if err == nil {
		err = t.control.Sync()
	}
	return want, errors.Join(err, t.control.Close(), t.events.Close(), t.archive.Close(t.boundary))
}

// Control implements backup.Target.
func (t *target) Control(part []byte) error {
	_, err := t.control.Write(part)
	return err
}

// Entry implements backup.Target.
func (t *target) Entry(e codec.Entry) error {
	switch {
	case len(e.Key) > 0 && e.Key[0] == prefixBlock:
		e.Key = e.Key[1:]
		return t.archive.Put(e)
	case len(e.Key) == 1 && e.Key[0] == prefixBoundary:
		t.boundary = binary.BigEndian.Uint64(e.Value)
		return nil
	}
	if seq, is := journal.ChunkOf(e); is {
		t.first = min(t.first, seq)
	}
	return t.events.Put(e)
}

// Certificate implements backup.Target.
func (t *target) Certificate(path string, content []byte) error {
	if !filepath.IsLocal(path) {
		return fmt.Errorf("the backup has a certificate %q outside of its directory", path)
	}
	file := filepath.Join(t.dir, certificatesDir, path)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// checkRestored opens what was restored as a server does, and counts the events. Erasures are done again when a server starts. The directory gets another id: its next backup is not one of the old directory.
func checkRestored(ctx context.Context, dir string, opt Options) (events int, err error) {
	data, err := control.Open(dir, opt.Now, opt.Log)
	if err != nil {
		return 0, err
	}
	_, err = data.ReplaceID()
	if err == nil {
		err = data.RepeatErasures(ctx)
	}
	if err := errors.Join(err, data.Close()); err != nil {
		return 0, err
	}
	opt.keepAll = true // the events that the backup has are counted
	opened, err := Open(dir, opt)
	if err != nil {
		return 0, err
	}
	e := opened.(*engine)
	release := e.archiver.hold()
	events, err = e.archive.Events()
	if err != nil {
		release()
		return 0, errors.Join(err, e.Close())
	}
	var damaged error
	err = e.journal.Since(e.archive.Boundary(), func(of []codec.Event, _ uint64) error {
		events += len(of)
		return ctx.Err()
	}, func(d journal.DamagedChunk) { damaged = fmt.Errorf("chunk %d %s", d.Seq, d.Reason()) })
	release()
	return events, errors.Join(err, damaged, e.Close())
}

// publish moves the files of a restore or a move to their places, from at, and removes that. When it is gone, the data directory is complete.
func publish(dir, at string) error {
	for _, name := range restoredFiles {
		// The control data comes last, also after a power cut: when it is in its place, everything is.
		if err := durable.SyncPath(dir); err != nil {
			return err
		}
		if err := os.Rename(filepath.Join(at, name), filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := durable.SyncPath(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(at); err != nil {
		return err
	}
	return durable.SyncPath(dir)
}

// checkFinished returns an error when a restore or a move into a data directory was cut off.
func checkFinished(dir string) error {
	for name, what := range map[string]string{restoringDir: "a restore into", movingDir: `"mtagd migrate" to`} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return fmt.Errorf("%s this directory has not finished: run it again", what)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
