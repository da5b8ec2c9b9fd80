package local

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"mtagd/store"
	"mtagd/store/local/rank"
)

// copied returns a copy of a directory, as a kill would leave it. While an engine has the directory open, Badger may
// create and remove files. A copy with some files from before such a change and others from after it would be a state that
// no kill leaves. So when the files or their sizes have changed meanwhile, the copy begins again.
func copied(t *testing.T, dir string) string {
	t.Helper()
	for range 100 {
		before := sizes(t, dir)
		to := t.TempDir()
		err := copyFiles(dir, to)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if err == nil && maps.Equal(before, sizes(t, dir)) {
			return to
		}
		if err := os.RemoveAll(to); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatalf("the files in %s change all the time", dir)
	return ""
}

// copyFiles copies the files in a directory and those below it. What is a hole, or was never written, is a hole in the copy:
// most of Badger's logs, and the spare files.
func copyFiles(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		}
		return copySparse(path, filepath.Join(to, name))
	})
}

func copySparse(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, info.Mode().Perm())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := out.Truncate(info.Size()); err != nil {
		return err
	}
	return eachWritten(in, func(start, end int64) error {
		_, err := io.Copy(io.NewOffsetWriter(out, start), io.NewSectionReader(in, start, end-start))
		return err
	})
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

// sizes returns the size of each file in a directory and those below it. A file that is removed meanwhile may be missing.
func sizes(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	sizes := map[string]int64{}
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				sizes[path] = info.Size()
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return sizes
}

// crash copies an open engine's files as a kill would leave them, and opens the copy.
func crash(t *testing.T, dir string) *engine {
	t.Helper()
	e := open(t, copied(t, dir))
	t.Cleanup(func() { closeEngine(t, e) })
	return e
}

func TestACrashLosesNothing(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	defer func() { closeEngine(t, e) }()
	m, other := store.NewMerchantID(), store.NewMerchantID()
	record(t, e, m, 700)
	if got, want := everything(t, crash(t, dir), m), everything(t, e, m); !reflect.DeepEqual(got, want) {
		t.Errorf("before any merge: %d events after the crash, %d before", got[0].Total, want[0].Total)
	}
	closeEngine(t, e) // merges
	e = open(t, dir)
	record(t, e, other, 300)
	record(t, e, m, 300)
	after := crash(t, dir)
	for _, m := range []store.MerchantID{m, other} {
		if got, want := everything(t, after, m), everything(t, e, m); !reflect.DeepEqual(got, want) {
			t.Errorf("after a merge: %d events after the crash, %d before", got[0].Total, want[0].Total)
		}
	}
}

// A missing index is rebuilt from the events. An index that covers events which are gone is refused.
func TestTheIndexMustFitTheEvents(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 300)
	before := copied(t, filepath.Join(dir, "events"))
	record(t, e, m, 300)
	want := everything(t, e, m)
	closeEngine(t, e)

	if err := os.Remove(filepath.Join(dir, "index.db")); err != nil {
		t.Fatal(err)
	}
	e = open(t, dir)
	if got := everything(t, e, m); !reflect.DeepEqual(got, want) {
		t.Errorf("%d events without the index, %d before", got[0].Total, want[0].Total)
	}
	closeEngine(t, e)

	if err := os.RemoveAll(filepath.Join(dir, "events")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(before, filepath.Join(dir, "events")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), "index") {
		t.Errorf("with events older than the index, Open gives %v; want an error that names the index", err)
	}
}

// An index of format 1 is rebuilt from the events. A kill in the middle of it, and damage in the old file, lose nothing.
func TestAnIndexOfTheOlderFormatIsRebuilt(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	m := store.NewMerchantID()
	record(t, e, m, 3000)
	want := everything(t, e, m)
	closeEngine(t, e)
	covered := func(dir string) (format string, seq uint64) {
		t.Helper()
		if err := changeBolt(filepath.Join(dir, "index.db"), func(tx *bolt.Tx) error {
			meta := tx.Bucket([]byte("meta"))
			format, seq = string(meta.Get([]byte("format"))), binary.BigEndian.Uint64(meta.Get([]byte("covered")))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return format, seq
	}
	_, last := covered(dir)
	if err := changeBolt(filepath.Join(dir, "index.db"), func(tx *bolt.Tx) error {
		for _, name := range []string{"segments", "blocks", "unused"} { // which format 1 does not have
			if err := tx.DeleteBucket([]byte(name)); err != nil {
				return err
			}
		}
		nodes := tx.Bucket([]byte("nodes"))
		k, _ := nodes.Cursor().First()
		return errors.Join(nodes.Put(k, []byte("of the older format")), tx.Bucket([]byte("meta")).Put([]byte("format"), []byte("1")))
	}); err != nil {
		t.Fatal(err)
	}

	killed := copied(t, dir) // after the old index was emptied, before the replay
	if x, err := rank.Open(filepath.Join(killed, "index.db"), 0, quiet); err != nil || !x.Outdated() || x.Covered() != last {
		t.Fatalf("the older index is not recognised, %v", err)
	} else if err := errors.Join(x.Reset(), x.Close()); err != nil {
		t.Fatal(err)
	}
	if format, seq := covered(killed); format != "3" || seq != 0 {
		t.Errorf("an emptied index has format %s and covers %d, want 3 and 0", format, seq)
	}
	gone := copied(t, dir)
	if err := os.RemoveAll(filepath.Join(gone, "events")); err != nil {
		t.Fatal(err)
	}

	for _, dir := range []string{dir, killed} {
		e = open(t, dir)
		if got := everything(t, e, m); !reflect.DeepEqual(got, want) {
			t.Errorf("%d events after the index was rebuilt, want %d", got[0].Total, want[0].Total)
		}
		closeEngine(t, e)
		if format, seq := covered(dir); format != "3" || seq != last {
			t.Errorf("the rebuilt index has format %s and covers %d, want 3 and %d", format, seq, last)
		}
	}
	if _, err := Open(gone, Options{Log: quiet}); err == nil {
		t.Error("an older index was opened though its events are missing")
	}
	if format, seq := covered(gone); format != "1" || seq != last {
		t.Errorf("when the events are missing, the older index has format %s and covers %d, want it unchanged", format, seq)
	}
}

// A long replay logs how far it is, from its first chunk to the last. The numbers of chunks are µs since 1970.
func TestAReplayLogsItsProgress(t *testing.T) {
	const start = 1_800_000_000_000_000
	var log strings.Builder
	p := replayProgress{log: slog.New(slog.NewTextHandler(&log, nil)), last: start + 200, next: time.Now().Add(time.Hour)}
	p.report(start)
	p.report(start + 50)
	if log.Len() > 0 {
		t.Errorf("a short replay logs %s", &log)
	}
	p.next = time.Now().Add(-time.Second)
	p.report(start + 100)
	p.report(start + 101) // too soon
	if strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "percent=50") {
		t.Errorf("the replay logs %s, want one line with 50 percent", &log)
	}

	log.Reset()
	p = replayProgress{log: p.log, last: start} // one chunk, which takes long to read
	p.report(start)
	if !strings.Contains(log.String(), "percent=0") {
		t.Errorf("the replay of one chunk logs %s, want 0 percent", &log)
	}
}
