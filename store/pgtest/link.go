package pgtest

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Link is a TCP port through which one process reaches a server. It can lose what goes through it, as a network does.
type Link struct {
	listener net.Listener
	to       string // unix socket

	mu    sync.Mutex
	moved sync.Cond // the state has changed
	state LinkState
	conns map[net.Conn]bool // both ends
	all   sync.WaitGroup
}

// LinkState says what a link does with what it gets.
type LinkState int

const (
	LinkOpen       LinkState = iota
	LinkCut                  // connections end, and new ones are refused, as when nothing listens there
	LinkSilent               // nothing arrives on either side, and nobody is told
	LinkToServer             // only what goes to the server arrives
	LinkFromServer           // only what comes from the server arrives
)

// linkChunk is how many bytes a link passes on at once: what a cut tears apart.
const linkChunk = 4 << 10

func newLink(socket string) (*Link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &Link{listener: listener, to: socket, conns: map[net.Conn]bool{}}
	l.moved.L = &l.mu
	l.all.Go(l.accept)
	return l, nil
}

// Port returns the port.
func (l *Link) Port() int { return l.listener.Addr().(*net.TCPAddr).Port }

// Set changes what the link does from now on. Bytes that were held back are passed on when the link is open again.
func (l *Link) Set(state LinkState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = state
	if state == LinkCut {
		l.closeConns()
	}
	l.moved.Broadcast()
}

func (l *Link) closeConns() {
	for c := range l.conns {
		_ = c.Close() // it was lost
	}
	clear(l.conns)
}

func (l *Link) close() error {
	err := l.listener.Close()
	l.Set(LinkCut)
	l.all.Wait()
	return err
}

func (l *Link) accept() {
	for {
		client, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // no descriptors are left, for example
			continue
		}
		l.all.Go(func() { l.serve(client) })
	}
}

func (l *Link) serve(client net.Conn) {
	defer client.Close()
	if !l.add(client) {
		return
	}
	defer l.remove(client)
	server, err := net.Dial("unix", l.to)
	if err != nil {
		return
	}
	defer server.Close()
	if !l.add(server) {
		return
	}
	defer l.remove(server)
	back := make(chan struct{})
	go func() {
		defer close(back)
		l.pass(client, server, LinkFromServer)
	}()
	l.pass(server, client, LinkToServer)
	<-back
}

// add returns false when the link is cut.
func (l *Link) add(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == LinkCut {
		return false
	}
	l.conns[c] = true
	return true
}

func (l *Link) remove(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// pass copies from one end to the other until one of them ends. The other end is told of an end as of bytes.
func (l *Link) pass(to, from net.Conn, direction LinkState) {
	buf := make([]byte, linkChunk)
	for {
		n, err := from.Read(buf)
		l.mu.Lock()
		for l.state == LinkSilent || l.state != LinkOpen && l.state != LinkCut && l.state != direction {
			l.moved.Wait()
		}
		l.mu.Unlock()
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				_ = from.Close()
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				_ = from.Close()
			}
			_ = to.Close()
			return
		}
	}
}
