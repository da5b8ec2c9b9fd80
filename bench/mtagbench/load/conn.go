package load

import (
	"bytes"
	"errors"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// conn is a keep-alive connection with at most one request in progress. Reading and writing never block.
type conn struct {
	fd   int
	slot int32 // its index in generator.conns

	out     []byte // the request in progress
	unsent  []byte // the part of out that the socket has not taken yet
	pending []byte // the beginning of an incomplete answer

	intended, sent time.Duration // since the phase began
	events         int           // in the request in progress
	busy, closed   bool
}

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
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, errors.Join(err, made.close())
	}
	return made, nil
}

func (c *conn) close() error { return unix.Close(c.fd) }

// read returns EAGAIN when there is nothing to read now, and io.EOF at the end.
func (c *conn) read(b []byte) (int, error) {
	n, err := unix.Read(c.fd, b)
	if err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
}

// send writes as much of unsent as the socket takes.
func (c *conn) send() error {
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
