package load

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// conn is a keep-alive connection with at most one request in progress. Reading never blocks: it returns EAGAIN, which
// crypto/tls passes on as a temporary error and can resume from. Writing blocks with TLS only.
type conn struct {
	fd   int
	slot int32     // its index in generator.conns
	tls  *tls.Conn // nil for plain HTTP

	out     []byte // the request in progress
	unsent  []byte // the part of out that the socket has not taken yet
	pending []byte // the beginning of an incomplete answer

	intended, sent time.Duration // since the phase began
	events         int           // in the request in progress
	busy, closed   bool
}

// dial connects, and makes the TLS handshake if the target has TLS. It does not verify certificates: the server is on
// this machine.
func dial(t Target) (*conn, error) {
	c, err := net.DialTimeout("tcp", t.Address.String(), 5*time.Second)
	if err != nil {
		return nil, err
	}
	defer c.Close() // the connection lives on in a duplicate of its descriptor, which the runtime's poller does not watch
	file, err := c.(*net.TCPConn).File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	made := &conn{fd: fd}
	if t.TLS {
		name, _, err := net.SplitHostPort(t.Host)
		if err != nil {
			name = t.Host
		}
		made.tls = tls.Client(socket(fd), &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		if err := unix.SetNonblock(fd, false); err != nil {
			return nil, errors.Join(err, made.close())
		}
		if err := made.tls.Handshake(); err != nil {
			return nil, errors.Join(err, made.close())
		}
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(err, made.close())
	}
	return made, nil
}

func (c *conn) close() error { return unix.Close(c.fd) }

func (c *conn) read(b []byte) (int, error) {
	if c.tls != nil {
		return c.tls.Read(b)
	}
	return socket(c.fd).Read(b)
}

// send writes as much of out as the socket takes.
func (c *conn) send() error {
	c.unsent = c.out
	return c.sendRest()
}

// sendRest writes as much of unsent as the socket takes.
func (c *conn) sendRest() error {
	if c.tls != nil {
		// crypto/tls cannot resume inside a record, so socket.Write waits for room.
		_, err := c.tls.Write(c.unsent)
		c.unsent = nil
		return err
	}
	for len(c.unsent) > 0 {
		n, err := unix.Write(c.fd, c.unsent)
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return err
		}
		c.unsent = c.unsent[n:]
	}
	return nil
}

// bodySize is the length of the body in out.
func (c *conn) bodySize() int {
	return len(c.out) - bytes.Index(c.out, []byte("\r\n\r\n")) - 4
}

// socket gives a descriptor the methods of net.Conn that crypto/tls needs.
type socket int

func (s socket) Read(b []byte) (int, error) {
	n, err := unix.Read(int(s), b)
	if err != nil {
		return 0, err // EAGAIN is a temporary net.Error
	}
	if n == 0 && len(b) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

func (s socket) Write(b []byte) (written int, err error) {
	for written < len(b) {
		n, err := unix.Write(int(s), b[written:])
		if errors.Is(err, unix.EAGAIN) {
			if _, err := unix.Poll([]unix.PollFd{{Fd: int32(s), Events: unix.POLLOUT}}, 1000); err != nil && !errors.Is(err, unix.EINTR) {
				return written, err
			}
			continue
		}
		if err != nil {
			return written, err
		}
		written += n
	}
	return written, nil
}

func (socket) Close() error                     { return nil }
func (socket) LocalAddr() net.Addr              { return nil }
func (socket) RemoteAddr() net.Addr             { return nil }
func (socket) SetDeadline(time.Time) error      { return nil }
func (socket) SetReadDeadline(time.Time) error  { return nil }
func (socket) SetWriteDeadline(time.Time) error { return nil }
