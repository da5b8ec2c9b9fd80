package edge

import (
	"context"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"
)

// clientCheckInterval is how often ClientContext checks the connection. Most requests are answered before the first check.
const clientCheckInterval = 100 * time.Millisecond

// ClientContext returns a context that ends when the client of a request has gone: it closed or reset the connection. A
// client that closes only its sending side counts as gone, because TCP does not tell the two apart. The context does not
// end when the server begins to stop: requests that have arrived are still answered. The handler must call the CancelFunc
// before it returns. A connection that this package did not accept is not checked: only the CancelFunc ends its context.
func ClientContext(r *fasthttp.RequestCtx) (context.Context, context.CancelFunc) {
	c := connOf(r)
	if c == nil {
		return context.WithCancel(context.Background())
	}
	return watchClient(c.clientGone, clientCheckInterval)
}

// waitCheckInterval is the longest time between two checks of a client whose request waits: there may be thousands.
const waitCheckInterval = 3 * time.Second

// WaitContext is ClientContext for a request that waits for something to happen, or streams what happens. The context also
// ends when the server begins to stop, and when it needs the connection for a new one. Then the handler must answer now,
// and a stream must end. The CancelFunc may be called after the handler has returned: when its stream has ended. A
// connection has one WaitContext at a time: a later one replaces it.
func WaitContext(r *fasthttp.RequestCtx) (context.Context, context.CancelFunc) {
	c := connOf(r)
	if c == nil {
		return context.WithCancel(context.Background())
	}
	ctx, cancel := watchClient(c.clientGone, waitCheckInterval)
	c.waiting.Store(&cancel)
	if c.readingStopped.Load() || c.open.stopping.Load() {
		cancel()
	}
	return ctx, func() {
		c.waiting.CompareAndSwap(&cancel, nil)
		cancel()
	}
}

// watchClient returns a context that ends when gone reports true. It asks gone after clientCheckInterval, and then at
// intervals that double up to the longest one, until the CancelFunc is called.
func watchClient(gone func() bool, longest time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	interval := clientCheckInterval
	var check func()
	check = func() {
		switch {
		case ctx.Err() != nil: // the handler has returned
		case gone():
			cancel()
		default:
			interval = min(2*interval, longest)
			time.AfterFunc(interval, check)
		}
	}
	first := time.AfterFunc(clientCheckInterval, check)
	return ctx, func() {
		cancel()
		first.Stop()
	}
}

// clientGone asks the kernel whether the client has closed the connection. It does not wait, and reads nothing.
func (c *conn) clientGone() bool {
	gone := false
	err := c.control(func(fd int) error {
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}} // POLLHUP and POLLERR are always reported
		_, err := unix.Poll(poll, 0)
		gone = err == nil && poll[0].Revents != 0
		return nil
	})
	return gone || err != nil // this server has closed the connection
}
