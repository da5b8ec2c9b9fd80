package edge

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// connections are the open ones. The zero value has none.
type connections struct {
	mu  sync.Mutex
	all map[*conn]struct{}

	bodies atomic.Int64 // bytes of the budget for bodies that their requests hold
}

func (o *connections) add(tcp *net.TCPConn) *conn {
	c := &conn{TCPConn: tcp, open: o}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[*conn]struct{}{}
	}
	o.all[c] = struct{}{}
	return c
}

func (o *connections) remove(c *conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, c)
}

func (o *connections) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.all)
}

// hurry ends the reading on every connection. Requests that were read already are still answered.
func (o *connections) hurry() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := range o.all {
		c.hurried.Store(true)
		// It fails on a connection that is closed already.
		_ = c.TCPConn.SetReadDeadline(time.Now())
	}
}
