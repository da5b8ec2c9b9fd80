package partnerapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
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

// streamedBody is the body of an answer that is made while it is sent. The goroutine of the connection sends it, after the
// handler has returned.
type streamedBody struct {
	ctx   context.Context // ends when nobody reads the answer any more, or when the service stops
	conn  net.Conn
	log   func(err error)
	first []byte
	next  func() ([]byte, error, bool) // the next chunk, or why the body cannot be finished; false at its end
	close func()
}

var _ fasthttp.BodyWriterTo = (*streamedBody)(nil)

// stream answers with the body that write writes; the context of write is that of Config.Waiting. It returns the error of
// write when that comes before the first chunk. When write fails later, the connection is closed without the end of the
// body, so that the client does not take it for complete. After the caller's key or session has ended, nothing can be
// written. The functions of onClose are called when the body is finished, also when it was never sent.
func (a *api) stream(r *fasthttp.RequestCtx, write func(ctx context.Context, w io.Writer) error, onClose ...func()) error {
	ctx, cancel := a.Waiting(r)
	from := callerOf(r)
	b := &streamedBody{
		ctx:  store.WithPartner(ctx, store.PartnerID(PartnerOf(r))),
		conn: r.Conn(),
		log:  func(err error) { a.logFailure(r, slog.LevelError, fasthttp.StatusOK, err) },
	}
	next, stop := iter.Pull2(func(yield func([]byte, error) bool) {
		defer func() {
			if p := recover(); p != nil {
				yield(nil, fmt.Errorf("panic: %v: %s", p, debug.Stack()))
			}
		}()
		if err := write(b.ctx, chunkWriter{yield, func() bool { _, ok := a.validFor(from); return ok }}); err != nil {
			yield(nil, err)
		}
	})
	b.next, b.close = next, sync.OnceFunc(func() {
		for _, call := range append([]func(){stop, cancel}, onClose...) {
			call()
		}
	})
	var err error
	if b.first, err, _ = next(); err != nil {
		if b.ctx.Err() != nil {
			err = store.Unavailable("the answer was ended before its beginning")
		}
		return errors.Join(err, b.Close())
	}
	r.Response.SetBodyStream(b, -1)
	return nil
}

// chunkWriter passes on what is written to it, which is sent before Write returns.
type chunkWriter struct {
	yield   func([]byte, error) bool
	mayRead func() bool // whether the caller may still read; it may have changed while the chunk was made
}

var errNotRead = errors.New("nobody reads the answer any more")

// Write implements io.Writer.
func (w chunkWriter) Write(b []byte) (int, error) {
	switch {
	case !w.mayRead():
		return 0, errKeyEnded
	case !w.yield(b, nil):
		return 0, errNotRead
	}
	return len(b), nil
}

// SupportsBodyWriteTo implements fasthttp.BodyWriterTo.
func (*streamedBody) SupportsBodyWriteTo() bool { return true }

// Read implements io.Reader. fasthttp calls WriteTo instead.
func (*streamedBody) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

// WriteTo implements io.WriterTo. Each write to w is one chunk of the answer, which is sent at once. The deadline of a write
// does not count the time in which nothing was written.
func (b *streamedBody) WriteTo(w io.Writer) (written int64, err error) {
	stop := context.AfterFunc(b.ctx, func() {
		time.Sleep(endPatience)
		_ = b.conn.Close() // fails when it is closed already, as it is for nearly every client
	})
	defer stop()
	var last time.Time // when the last write ended
	for chunk, isMore := b.first, b.first != nil; isMore; {
		// Not before each write: the front door measures how fast the client reads from one deadline to the next.
		if now := time.Now(); now.Sub(last) > time.Second {
			if err := b.conn.SetWriteDeadline(now.Add(writePatience)); err != nil {
				return written, err
			}
		}
		n, err := w.Write(chunk)
		written += int64(n)
		if err != nil {
			return written, err
		}
		last = time.Now()
		if chunk, err, isMore = b.next(); err != nil {
			if b.ctx.Err() == nil {
				b.log(err)
			}
			return written, err
		}
	}
	return written, nil
}

// Close implements io.Closer.
func (b *streamedBody) Close() error {
	b.close()
	return nil
}
