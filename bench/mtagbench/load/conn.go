package load

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
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

// reply is what the generator needs of an answer.
type reply struct {
	status     int
	retryAfter bool
	closes     bool   // Connection: close
	body       []byte // part of the bytes given to parseReply
}

// parseReply reads an answer from the front of b. size is 0 while the answer is incomplete.
func parseReply(b []byte) (r reply, size int, err error) {
	end := bytes.Index(b, []byte("\r\n\r\n"))
	if end < 0 {
		return r, 0, nil
	}
	line, rest, _ := bytes.Cut(b[:end], []byte("\r\n"))
	if len(line) < len("HTTP/1.1 200") || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return r, 0, fmt.Errorf("not an HTTP/1.1 answer: %.40q", line)
	}
	if r.status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return r, 0, fmt.Errorf("not an HTTP/1.1 answer: %.40q", line)
	}
	length := -1
	for len(rest) > 0 {
		line, rest, _ = bytes.Cut(rest, []byte("\r\n"))
		// The first letter rules out most headers without a comparison.
		switch line[0] | 0x20 {
		case 'c':
			if v, ok := header(line, "Content-Length"); ok {
				if length, err = strconv.Atoi(string(v)); err != nil || length < 0 {
					return r, 0, fmt.Errorf("invalid Content-Length %q", v)
				}
			} else if v, ok := header(line, "Connection"); ok {
				r.closes = bytes.EqualFold(v, []byte("close"))
			}
		case 'r':
			if _, ok := header(line, "Retry-After"); ok {
				r.retryAfter = true
			}
		}
	}
	if length < 0 {
		return r, 0, errors.New("an answer without Content-Length")
	}
	size = end + 4 + length
	if size > len(b) {
		return r, 0, nil
	}
	r.body = b[end+4 : size]
	return r, size, nil
}

func header(line []byte, name string) (value []byte, ok bool) {
	if len(line) <= len(name) || line[len(name)] != ':' || !bytes.EqualFold(line[:len(name)], []byte(name)) {
		return nil, false
	}
	return bytes.TrimSpace(line[len(name)+1:]), true
}

// accepted is the number of events that the server accepted: 1 with status 201; N with status 200, the answer to a batch,
// {"accepted":N,….
func (r *reply) accepted() int {
	if r.status == 201 {
		return 1
	}
	rest, ok := bytes.CutPrefix(r.body, []byte(`{"accepted":`))
	digits, _, _ := bytes.Cut(rest, []byte(","))
	n, err := strconv.Atoi(string(digits))
	if r.status != 200 || !ok || err != nil {
		return 0
	}
	return n
}
