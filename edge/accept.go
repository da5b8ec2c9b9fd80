package edge

import (
	"errors"
	"log/slog"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// sendBuffer is how many bytes of answers the kernel takes from each connection before the client's kernel has them. The
// kernel adds as much again for its own bookkeeping. By default it takes up to 4 MiB: answers that nobody reads would
// count as sent, so no deadline would end their connections, and the kernel's memory would hold them.
const sendBuffer = 128 << 10

// retryingListener retries when the process or the system has run out of descriptors or memory: fasthttp would stop
// serving. Meanwhile connections wait in the kernel's queue.
type retryingListener struct {
	net.Listener
	log  *slog.Logger
	open *connections // Accept adds each connection
}

func (l retryingListener) Accept() (net.Conn, error) {
	for delay := 5 * time.Millisecond; ; delay = min(2*delay, time.Second) {
		c, err := l.Listener.Accept()
		switch {
		case err == nil:
			if tcp, ok := c.(*net.TCPConn); ok {
				// The option is not set on the listener: that would miss the connections that are in its queue already.
				// It fails only when the connection is broken; then reading fails too.
				_ = tcp.SetWriteBuffer(sendBuffer)
				return l.open.add(tcp), nil
			}
			return c, nil
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE),
			errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
			l.log.Warn("cannot accept connections, retrying", "error", err, "retry_in_ms", delay.Milliseconds())
			time.Sleep(delay)
		case errors.Is(err, unix.ECONNABORTED):
			// The client closed the connection before Accept: take the next one.
		default:
			return nil, err
		}
	}
}
