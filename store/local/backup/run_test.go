package backup

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"mtagd/store/local/codec"
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
