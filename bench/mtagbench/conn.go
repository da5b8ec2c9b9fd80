package main

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// target is where load goes: the server's address, and what a request says to be let in.
type target struct {
	address netip.AddrPort
	tls     bool
	host    string // Host header and SNI
	path    string
}

// parseTarget reads a URL. Only loopback addresses are taken: this program must not be able to load
// somebody else's server. host replaces the URL's own in requests, unless it is empty.
func parseTarget(text, host string) (target, error) {
	u, err := url.Parse(text)
	if err != nil {
		return target{}, err
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return target{}, fmt.Errorf("%s: must begin with http:// or https://", text)
	}
	t := target{tls: u.Scheme == "https", host: host, path: u.RequestURI()}
	if t.address, err = netip.ParseAddrPort(u.Host); err != nil {
		return target{}, fmt.Errorf("%s: must name a loopback address and a port, such as 127.0.0.1:8080", text)
	}
	if !t.address.Addr().IsLoopback() {
		return target{}, fmt.Errorf("%s: is not a loopback address", text)
	}
	if t.host == "" {
		t.host = u.Host
	}
	return t, nil
}

// conn is a keep-alive connection with at most one request under way. It never blocks: read and write
// return EAGAIN instead, which crypto/tls passes on and takes up again at, as it does with
// every temporary error.
type conn struct {
	fd   int
	slot int32     // its place among the generator's connections
	tls  *tls.Conn // nil for plain HTTP

	out     []byte // the request under way
	unsent  []byte // its part that the socket did not take yet
	pending []byte // an answer's bytes, while it is incomplete

	intended, sent time.Duration // since the phase began
	events         int           // in the request under way
	busy, closed   bool
}

// dial connects, and shakes hands where the target has TLS. Certificates are not verified: the peer is on this machine.
func dial(t target) (*conn, error) {
	c, err := net.DialTimeout("tcp", t.address.String(), 5*time.Second)
	if err != nil {
		return nil, err
	}
	defer c.Close() // its descriptor is duplicated below, away from the runtime's poller
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
	if t.tls {
		name, _, err := net.SplitHostPort(t.host)
		if err != nil {
			name = t.host
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

// send writes the request in out, as much as the socket takes.
func (c *conn) send() error {
	c.unsent = c.out
	return c.resume()
}

// resume goes on with writing; what is left is in unsent.
func (c *conn) resume() error {
	if c.tls != nil {
		// A record cannot be taken up in its middle, so the socket below waits for room.
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

// socket is a descriptor as crypto/tls wants a connection.
type socket int

func (s socket) Read(b []byte) (int, error) {
	n, err := unix.Read(int(s), b)
	if err != nil {
		return 0, err // EAGAIN is a net.Error, and temporary
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

// reply is what the generator wants to know of an answer.
type reply struct {
	status     int
	retryAfter bool
	closes     bool
	body       []byte // aliases the bytes that were read
}

// parseReply reads an answer from the front of b. size is 0 while it is incomplete.
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
		// The first letter tells most headers apart without a comparison.
		switch line[0] | 0x20 {
		case 'c':
			if v, ok := header(line, "Content-Length"); ok {
				if length, err = strconv.Atoi(string(v)); err != nil || length < 0 {
					return r, 0, fmt.Errorf("Content-Length %q", v)
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
