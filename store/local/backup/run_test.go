package backup

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"mtagd/store/local/codec"
	"mtagd/store/testenv"
)

// fakeSource streams what a test writes.
type fakeSource func(ctx context.Context, w *Writer) error

func (s fakeSource) ID(context.Context) (string, error) { return "data", nil }

func (s fakeSource) Stream(ctx context.Context, _ Request, w io.Writer) error {
	return s(ctx, NewWriter(w))
}

// streamed returns a source whose data directory is as of a moment.
func streamed(h Header) fakeSource {
	return func(_ context.Context, w *Writer) error {
		return errors.Join(w.Header(h), writeRest(w, "x"))
	}
}

// writeRest writes control data, one entry and the end.
func writeRest(w *Writer, key string) error {
	_, err := w.Write([]byte("control"))
	return errors.Join(err, w.Entry(codec.Entry{Key: []byte(key), Version: 1}, false, 0), w.End())
}

// unstoppable is a destination that goes on after an interrupt.
type unstoppable struct{ Destination }

func (d unstoppable) Put(ctx context.Context, name string, content []byte) error {
	return d.Destination.Put(context.WithoutCancel(ctx), name, content)
}

func testOptions() Options { return Options{Log: slog.New(slog.DiscardHandler), Now: time.Now} }

// A backup makes no point when its source fails, or when it is interrupted: at whatever moment, and although all frames have
// arrived.
func TestAFailedStreamIsNoPoint(t *testing.T) {
	broken := errors.New("the disk is broken")
	for _, c := range []struct {
		name   string
		stream func(w *Writer, interrupt func()) error
		want   error
	}{
		{"the source fails before it writes", func(*Writer, func()) error { return broken }, broken},
		{"the source fails before the end frame", func(w *Writer, _ func()) error {
			return errors.Join(w.Header(Header{Time: time.Now(), Version: 5}), broken)
		}, broken},
		{"the source fails after the end frame", func(w *Writer, _ func()) error {
			return errors.Join(w.Header(Header{Time: time.Now(), Version: 5}), writeRest(w, "x"), broken)
		}, broken},
		{"an interrupt before the end frame", func(w *Writer, interrupt func()) error {
			err := w.Header(Header{Time: time.Now(), Version: 5})
			interrupt()
			return errors.Join(err, writeRest(w, "x"))
		}, context.Canceled},
		{"an interrupt after the end frame", func(w *Writer, interrupt func()) error {
			err := errors.Join(w.Header(Header{Time: time.Now(), Version: 5}), writeRest(w, "x"))
			interrupt()
			return err
		}, context.Canceled},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		d := unstoppable{directory{path: t.TempDir()}}
		src := fakeSource(func(_ context.Context, w *Writer) error { return c.stream(w, cancel) })
		if _, err := New(d, src).Run(ctx, testOptions()); !errors.Is(err, c.want) {
			t.Errorf("%s: the error is %v, want %v", c.name, err, c.want)
		}
		if points, err := Points(t.Context(), d); len(points) > 0 || err != nil {
			t.Errorf("%s: there are %d points, %v", c.name, len(points), err)
		}
		cancel()
	}
}

// hanging is a destination whose operations wait until it answers.
type hanging struct {
	Destination
	called, answer chan struct{}
}

func (d hanging) Put(ctx context.Context, name string, content []byte) error {
	close(d.called)
	<-d.answer
	return d.Destination.Put(ctx, name, content)
}

// When a backup is interrupted, its source ends, even if the destination hangs.
func TestAHangingDestinationDoesNotHoldTheSource(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	d := hanging{directory{path: t.TempDir()}, make(chan struct{}), make(chan struct{})}
	ended := make(chan error, 1)
	src := fakeSource(func(_ context.Context, w *Writer) error {
		err := w.Header(Header{Time: time.Now(), Version: 1})
		for err == nil {
			_, err = w.Write(make([]byte, controlPiece))
		}
		ended <- err
		return err
	})
	var backup sync.WaitGroup
	backup.Go(func() {
		if _, err := New(d, src).Run(ctx, testOptions()); !errors.Is(err, context.Canceled) {
			t.Errorf("the backup ends with %v", err)
		}
	})
	<-d.called
	cancel()
	<-ended
	close(d.answer)
	backup.Wait()
}

// Points are ordered by what they have: one whose clock was wrong is not the newest for ever.
func TestAPointOfTheFutureIsNotTheNewest(t *testing.T) {
	d := directory{path: t.TempDir()}
	next := time.Now().AddDate(10, 0, 0)
	for version := range uint64(3) {
		h := Header{Time: next, Version: version + 1}
		if version > 0 {
			h.Since = version
		}
		result, err := New(d, streamed(h)).Run(t.Context(), testOptions())
		testenv.Check(t, err)
		if isBase := result.Point.Parent == ""; isBase != (version == 0) {
			t.Errorf("point %d builds on %q", version, result.Point.Parent)
		}
		next = time.Now()
	}
	points, err := Points(t.Context(), d)
	testenv.Check(t, err)
	if found, err := Find(points, "", time.Time{}); err != nil || found[0].Version != 3 {
		t.Errorf("the newest points are %+v, %v", found, err)
	}
}

// A backup every few seconds notices a lost object: with the first point of a process, with one that folds, and every
// cleanEvery. Then it makes a new base.
func TestAContinuousBackupNoticesALostObject(t *testing.T) {
	for _, c := range []struct {
		name  string
		fresh bool // another process
		fold  bool
		after time.Duration
		base  bool
	}{
		{"a moment later", false, false, time.Second, false},
		{"a fold", false, true, time.Second, true},
		{"another process", true, false, time.Second, true},
		{"after cleanEvery", false, false, cleanEvery + time.Second, true},
	} {
		d := directory{path: t.TempDir()}
		now := time.Now()
		version := uint64(0)
		src := fakeSource(func(_ context.Context, w *Writer) error {
			h := Header{Time: now, Since: version, Version: version + 1}
			version++
			return errors.Join(w.Header(h), writeRest(w, string(rune('a'+version))))
		})
		b := New(d, src)
		opt := testOptions()
		opt.Small, opt.Now = true, func() time.Time { return now }
		var first Result
		for i := range 3 { // a base, and two small points, the first of which looks
			result, err := b.Run(t.Context(), opt)
			testenv.Check(t, err)
			if i == 0 {
				first = result
			}
		}
		testenv.Check(t, d.Delete(t.Context(), first.Point.Events[0].Name))
		if c.fresh {
			b = New(d, src)
		}
		now = now.Add(c.after)
		opt.Fold = c.fold
		result, err := b.Run(t.Context(), opt)
		testenv.Check(t, err)
		if isBase := result.Point.Parent == ""; isBase != c.base {
			t.Errorf("%s: it builds on %q, because %q", c.name, result.Point.Parent, result.Why)
		}
	}
}
