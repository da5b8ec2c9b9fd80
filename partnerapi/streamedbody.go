package partnerapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// writePatience is how long a client may take to begin to read what a body has written.
const writePatience = 10 * time.Second

// endPatience is how long a client may take to read the rest when its answer must end. Then the connection is closed: a
// client that reads slowly does not hold up the stop of the service.
const endPatience = time.Second

// streamedBody is the body of an answer that is made while it is sent. The goroutine of the connection writes it, after the
// handler has returned.
type streamedBody struct {
	ctx     context.Context // ends when nobody reads the answer any more, or when the service stops
	conn    net.Conn
	log     func(err error)
	write   func(ctx context.Context, w io.Writer) error
	onClose []func()
	closed  sync.Once
}

var _ fasthttp.BodyWriterTo = (*streamedBody)(nil)

// newStreamedBody returns the body of an answer. write writes the body; its context is that of Config.Waiting. When write
// fails, the connection is closed without the end of the body, so that the client does not take it for complete. The body
// calls the functions of onClose when it is finished, also when it was never written.
func (a *api) newStreamedBody(
	r *fasthttp.RequestCtx, write func(ctx context.Context, w io.Writer) error, onClose ...func(),
) *streamedBody {
	ctx, cancel := a.Waiting(r)
	return &streamedBody{
		ctx:     store.WithPartner(ctx, store.PartnerID(PartnerOf(r))),
		conn:    r.Conn(),
		log:     func(err error) { a.logFailure(r, slog.LevelError, fasthttp.StatusOK, err) },
		write:   write,
		onClose: append(onClose, cancel),
	}
}

// SupportsBodyWriteTo implements fasthttp.BodyWriterTo.
func (*streamedBody) SupportsBodyWriteTo() bool { return true }

// Read implements io.Reader. fasthttp calls WriteTo instead.
func (*streamedBody) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// WriteTo implements io.WriterTo. Each write to w is one chunk of the answer, which is sent at once.
func (b *streamedBody) WriteTo(w io.Writer) (n int64, err error) {
	out := &bodyWriter{to: w, conn: b.conn}
	stop := context.AfterFunc(b.ctx, func() {
		time.Sleep(endPatience)
		_ = b.conn.Close() // fails when it is closed already, as it is for nearly every client
	})
	defer stop()
	defer func() {
		if p := recover(); p != nil {
			err = errors.New("panic")
			b.log(fmt.Errorf("panic: %s", debug.Stack()))
		}
		n = out.written
	}()
	err = b.write(b.ctx, out)
	if err != nil && b.ctx.Err() == nil && out.failed == nil {
		b.log(err)
	}
	return out.written, err
}

// Close implements io.Closer.
func (b *streamedBody) Close() error {
	b.closed.Do(func() {
		for _, call := range b.onClose {
			call()
		}
	})
	return nil
}

// bodyWriter writes to a connection. The deadline of a write does not count the time in which nothing was written.
type bodyWriter struct {
	to      io.Writer
	conn    net.Conn
	written int64
	last    time.Time // when the last write ended
	failed  error
}

// Write implements io.Writer.
func (w *bodyWriter) Write(b []byte) (int, error) {
	// Not before each write: the front door measures how fast the client reads from one deadline to the next.
	if now := time.Now(); now.Sub(w.last) > time.Second {
		if err := w.conn.SetWriteDeadline(now.Add(writePatience)); err != nil {
			w.failed = err
			return 0, err
		}
	}
	n, err := w.to.Write(b)
	w.written += int64(n)
	w.last, w.failed = time.Now(), err
	return n, err
}
