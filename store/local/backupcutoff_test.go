package local

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"mtagd/store"
	"mtagd/store/local/backup"
	"mtagd/store/testenv"
)

// failing is a destination that fails from its operation number left on. Each failure may have been a kill: nothing that
// was begun is undone.
type failing struct {
	backup.Destination
	left int
}

var errFailing = errors.New("the destination fails")

func (f *failing) fails() bool {
	f.left--
	return f.left < 0
}

func (f *failing) Put(ctx context.Context, name string, content []byte) error {
	if f.fails() {
		if f.left%2 == 0 { // the object may be there although the operation has failed
			return errors.Join(errFailing, f.Destination.Put(ctx, name, content))
		}
		return errFailing
	}
	return f.Destination.Put(ctx, name, content)
}

func (f *failing) Get(ctx context.Context, name string, limit int64) ([]byte, error) {
	if f.fails() {
		return nil, errFailing
	}
	return f.Destination.Get(ctx, name, limit)
}

func (f *failing) List(ctx context.Context, prefix string) ([]backup.Stored, error) {
	if f.fails() {
		return nil, errFailing
	}
	return f.Destination.List(ctx, prefix)
}

func (f *failing) Delete(ctx context.Context, name string) error {
	if f.fails() {
		return errFailing
	}
	return f.Destination.Delete(ctx, name)
}

// A backup that fails at any step leaves no false point: every point that is there restores, the next backup succeeds, and
// one of the next day leaves no garbage.
func TestDrillABackupThatIsCutOff(t *testing.T) {
	testenv.Drill(t)
	dir := t.TempDir()
	e := open(t, dir)
	defer func() { closeEngine(t, e) }()
	before := filepath.Join(t.TempDir(), "backup")
	m := store.NewMerchantID()
	change(t, e, m, 0)
	old := time.Now().Add(-time.Hour)
	first := backUp(t, e, dir, destination(t, before), nil)
	wantFirst := contentsOf(t, e, m)
	change(t, e, m, 1)
	for n, done := 0, false; !done; n++ {
		if n > 50 {
			t.Fatal("the backup never succeeds")
		}
		d := destination(t, copied(t, before))
		expire := func(o *backup.Options) { o.Full, o.Keep = n%2 == 1, time.Since(old) }
		_, err := tryBackup(e, dir, &failing{d, n}, expire)
		if done = err == nil; !done && !errors.Is(err, errFailing) {
			t.Errorf("step %d: %v", n, err)
		}
		checkNoProblem(t, d)
		last := backUp(t, e, dir, d, func(o *backup.Options) {
			o.Full, o.Now = n%2 == 1, func() time.Time { return time.Now().Add(25 * time.Hour) }
		})
		checkNoProblem(t, d)
		checkNoGarbage(t, d)
		if got := contentsOf(t, restored(t, d, last.Point), m); !reflect.DeepEqual(got, contentsOf(t, e, m)) {
			t.Errorf("step %d: the last point has %d events", n, got.Pages[0].Total)
		}
		if n > 0 {
			continue // once is enough: the first point does not change
		}
		if got := contentsOf(t, restored(t, d, first.Point), m); !reflect.DeepEqual(got, wantFirst) {
			t.Errorf("step %d: the first point has %d events", n, got.Pages[0].Total)
		}
	}
}

func checkNoProblem(t *testing.T, d backup.Destination) {
	t.Helper()
	if report, err := backup.Verify(ctx, d, nil, CheckEntry, nil); err != nil || len(report.Problems) > 0 {
		t.Errorf("verify: %+v, %v", report, err)
	}
}

func checkNoGarbage(t *testing.T, d backup.Destination) {
	t.Helper()
	points, err := backup.Points(ctx, d)
	testenv.Check(t, err)
	stored, err := d.List(ctx, "")
	testenv.Check(t, err)
	for _, object := range stored {
		known := strings.HasSuffix(object.Name, "/lock")
		for _, p := range points {
			known = known || strings.Contains(object.Name, p.Point)
		}
		if !known {
			t.Errorf("%s belongs to no point", object.Name)
		}
	}
}

// A restore that fails at any step leaves a directory that is not opened, and that the next restore uses.
func TestARestoreThatIsCutOff(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	defer func() { closeEngine(t, e) }()
	d := destination(t, filepath.Join(t.TempDir(), "backup"))
	m := store.NewMerchantID()
	change(t, e, m, 0)
	backUp(t, e, dir, d, nil)
	change(t, e, m, 1)
	point := backUp(t, e, dir, d, nil).Point
	points, err := backup.Points(ctx, d)
	testenv.Check(t, err)
	to := filepath.Join(t.TempDir(), "restored")
	attempt := func(d backup.Destination) error {
		_, err := Restore(ctx, to, Options{Log: quiet}, func(target backup.Target) (backup.Count, error) {
			return backup.Restore(ctx, d, points, point, nil, CheckEntry, target, nil)
		})
		return err
	}
	for n := 0; ; n++ {
		err := attempt(&failing{d, n})
		if err == nil {
			break
		}
		if !errors.Is(err, errFailing) {
			t.Fatalf("step %d: %v", n, err)
		}
		if opened, err := Open(to, Options{Log: quiet}); err == nil || !strings.Contains(err.Error(), "restore") {
			closeEngine(t, opened.(*engine))
			t.Fatalf("step %d: an unfinished restore was opened", n)
		}
	}
	restored := open(t, to)
	if got := contentsOf(t, restored, m); !reflect.DeepEqual(got, contentsOf(t, e, m)) {
		t.Errorf("the restored directory has %d events", got.Pages[0].Total)
	}
	closeEngine(t, restored)
	if err := attempt(d); !errors.Is(err, ErrNotEmpty) {
		t.Errorf("a second restore gives %v, want ErrNotEmpty", err)
	}
	// A kill at the very end: everything is there, but the mark.
	testenv.Check(t, os.WriteFile(filepath.Join(to, unfinishedFile), nil, 0o600))
	if _, err := Open(to, Options{Log: quiet}); err == nil {
		t.Error("a half-moved restore was opened")
	}
	if err := attempt(d); err != nil {
		t.Error(err)
	}
}

// interrupted is a source whose streams are interrupted by their first write.
type interrupted struct {
	*Source
	frames *bytes.Buffer
}

func (s interrupted) Stream(ctx context.Context, r backup.Request, to io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return s.Source.Stream(ctx, r, interrupting{s.frames, cancel})
}

type interrupting struct {
	io.Writer
	interrupt func()
}

func (w interrupting) Write(b []byte) (int, error) {
	w.interrupt()
	return w.Writer.Write(b)
}

// replaying is a source that streams what another one has written, and does not fail.
type replaying struct {
	interrupted
}

func (s replaying) Stream(_ context.Context, _ backup.Request, to io.Writer) error {
	_, err := s.frames.WriteTo(to)
	return err
}

// The stream of an interrupted source has no end frame: nobody who reads it can take it for everything.
func TestAnInterruptedStreamHasNoEnd(t *testing.T) {
	dir := t.TempDir()
	e := open(t, dir)
	change(t, e, store.NewMerchantID(), 0)
	closeEngine(t, e)
	src, err := OpenSource(dir, Options{Log: quiet})
	testenv.Check(t, err)
	defer func() {
		if err := src.Close(); err != nil {
			t.Error(err)
		}
	}()
	s := interrupted{src, new(bytes.Buffer)}
	if err := s.Stream(ctx, backup.Request{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("the interrupted stream gives %v", err)
	}
	d := destination(t, filepath.Join(t.TempDir(), "backup"))
	_, err = backup.New(d, replaying{s}).Run(ctx, backup.Options{Log: quiet, Now: time.Now})
	if err == nil || err.Error() != context.Canceled.Error() {
		t.Errorf("its reader gets the error %v, want the source's", err)
	}
}
