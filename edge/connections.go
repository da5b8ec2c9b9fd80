package edge

import (
	"cmp"
	"context"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/edge/limit"
)

// connections is the set of open connections of all listeners together.
type connections struct {
	limit     int           // how many may be open; 0: no limit
	perClient int           // how many of them one client may have; 0: no limit
	interval  time.Duration // by which a deadline moves, see rateInterval

	refusals *limit.Refusals // counts the connections that makeRoom ends; nil: not counted

	stopping atomic.Bool // set by stop: from then on, each answer closes its connection

	mu        sync.Mutex
	accepting map[net.Listener]struct{}
	all       map[*conn]struct{}
	ofClient  map[netip.Addr]int // by conn.client
	left      *sync.Cond         // a connection or a listener was removed
}

// newConnections returns an empty set without limits.
func newConnections() *connections {
	o := &connections{accepting: map[net.Listener]struct{}{}, all: map[*conn]struct{}{}, ofClient: map[netip.Addr]int{}}
	o.left = sync.NewCond(&o.mu)
	return o
}

// startAccepting notes a listener until endAccepting. When the server is stopping, it closes the listener and returns false.
func (o *connections) startAccepting(ln net.Listener) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopping.Load() {
		_ = ln.Close() // it has accepted nothing
		return false
	}
	o.accepting[ln] = struct{}{}
	return true
}

func (o *connections) endAccepting(ln net.Listener) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.accepting, ln)
	o.left.Broadcast()
}

// add adds a connection. When the limit is reached, it first ends others, and waits until one is closed.
func (o *connections) add(tcp *net.TCPConn) *conn {
	c := &conn{TCPConn: tcp, open: o}
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.limit > 0 && len(o.all) >= o.limit {
		o.makeRoom()
		o.left.Wait()
	}
	o.all[c] = struct{}{}
	return c
}

// setClient sets the client of a connection, and counts the connection as one of that client. It returns false when
// the client has as many as it may: then the connection must be closed. A client without an IP has no limit: a proxy
// may name one that connected over a Unix socket.
func (o *connections) setClient(c *conn, client netip.Addr) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, isOpen := o.all[c]; !isOpen {
		return false
	}
	if !client.IsValid() {
		return true
	}
	if o.perClient > 0 && o.ofClient[client] >= o.perClient {
		return false
	}
	c.client = client
	o.ofClient[client]++
	return true
}

// remove removes a connection that is closed. It does nothing when the connection is removed already.
func (o *connections) remove(c *conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, isOpen := o.all[c]; !isOpen {
		return
	}
	delete(o.all, c)
	o.left.Broadcast()
	if !c.client.IsValid() {
		return
	}
	if o.ofClient[c.client]--; o.ofClient[c.client] == 0 {
		delete(o.ofClient, c.client)
	}
}

func (o *connections) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.all)
}

// stop closes the listeners, and ends every WaitContext, later ones too. From now on, a connection ends when it is idle.
func (o *connections) stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stopping.Store(true)
	for ln := range o.accepting {
		_ = ln.Close() // it fails only when it is closed already
	}
	for c := range o.all {
		c.endWaiting()
	}
}

// stopReading makes reads on some connections fail. Requests that have arrived are still answered.
func (o *connections) stopReading(of func(*conn) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for c := range o.all {
		if of(c) {
			c.stopReading()
		}
	}
}

// wait waits until no connection is left and none can be added. It returns ctx's error when ctx ends first.
func (o *connections) wait(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer context.AfterFunc(ctx, func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.left.Broadcast()
	})()
	for len(o.accepting) > 0 || len(o.all) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		o.left.Wait()
	}
	return nil
}

// roomShare is the share of all connections that makeRoom ends at once. It looks at every connection, so it ends several.
const roomShare = 64

// makeRoom ends a few connections: of the clients with the most, those that have sent nothing for the longest time. A
// request that has arrived is still answered; one that waits or streams ends (WaitContext). The caller holds mu.
func (o *connections) makeRoom() {
	number := max(1, o.limit/roomShare)
	type candidate struct {
		*conn
		silent time.Duration
	}
	var candidates []candidate
	crowded := o.crowdedFrom(number)
	for c := range o.all {
		if o.ofClient[c.client] >= crowded && !c.readingStopped.Load() {
			candidates = append(candidates, candidate{c, c.silence()})
		}
	}
	slices.SortFunc(candidates, func(a, b candidate) int { return cmp.Compare(b.silent, a.silent) })
	for _, c := range candidates[:min(number, len(candidates))] {
		c.stopReading()
		o.refusals.Count(limit.Connections, limit.Tenant{})
	}
}

// crowdedFrom returns the number of connections from which on a client is crowded: all crowded clients together have at
// least number connections. It returns 0 when there are too few.
func (o *connections) crowdedFrom(number int) int {
	for _, n := range slices.Backward(slices.Sorted(maps.Values(o.ofClient))) {
		if number -= n; number <= 0 {
			return n
		}
	}
	return 0
}

// silence asks the kernel how long ago the client has sent something, or has connected.
func (c *conn) silence() (silent time.Duration) {
	_ = c.control(func(fd int) error { // fails only when the connection is closed already
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil {
			silent = time.Duration(info.Last_data_recv) * time.Millisecond
		}
		return err
	})
	return silent
}
