package main

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// link is a TCP port through which one process reaches a server. It can lose what goes through it, as a network does.
type link struct {
	listener net.Listener
	to       string // unix socket

	mu    sync.Mutex
	moved sync.Cond // the state has changed
	state linkState
	conns map[net.Conn]bool // both ends
	all   sync.WaitGroup
}

// linkState says what a link does with what it gets.
type linkState int

const (
	linkOpen       linkState = iota
	linkCut                  // connections end, and new ones are refused, as when nothing listens there
	linkSilent               // nothing arrives on either side, and nobody is told
	linkToServer             // only what goes to the server arrives
	linkFromServer           // only what comes from the server arrives
)

// linkChunk is how many bytes a link passes on at once: what a cut tears apart.
const linkChunk = 4 << 10

func newLink(socket string) (*link, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &link{listener: listener, to: socket, conns: map[net.Conn]bool{}}
	l.moved.L = &l.mu
	l.all.Go(l.accept)
	return l, nil
}

// port returns the port.
func (l *link) port() int { return l.listener.Addr().(*net.TCPAddr).Port }

// set changes what the link does from now on. Bytes that were held back are passed on when the link is open again.
func (l *link) set(state linkState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.state = state
	if state == linkCut {
		l.closeConns()
	}
	l.moved.Broadcast()
}

func (l *link) closeConns() {
	for c := range l.conns {
		_ = c.Close() // it was lost
	}
	clear(l.conns)
}

func (l *link) close() error {
	err := l.listener.Close()
	l.set(linkCut)
	l.all.Wait()
	return err
}

func (l *link) accept() {
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

func (l *link) serve(client net.Conn) {
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
		l.pass(client, server, linkFromServer)
	}()
	l.pass(server, client, linkToServer)
	<-back
}

// add returns false when the link is cut.
func (l *link) add(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == linkCut {
		return false
	}
	l.conns[c] = true
	return true
}

func (l *link) remove(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
}

// pass copies from one end to the other until one of them ends. The other end is told of an end as of bytes.
func (l *link) pass(to, from net.Conn, direction linkState) {
	buf := make([]byte, linkChunk)
	for {
		n, err := from.Read(buf)
		l.mu.Lock()
		for l.state == linkSilent || l.state != linkOpen && l.state != linkCut && l.state != direction {
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
