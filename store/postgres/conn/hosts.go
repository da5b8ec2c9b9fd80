package conn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/singleflight"
)

const (
	probeGrace   = 100 * time.Millisecond // for other servers to say that they are the primary, after the first
	closeTimeout = time.Second            // for a server to end a connection or a statement that the node has given up
)

// hosts knows the servers of an address, which of them is the primary, and the connections to them. When the address has
// several servers, a connection is made to the primary alone: a server that is gone or stopped is not waited for.
//
// A server may be so slow, for example after a crash, that it takes seconds to accept a connection. So no connection is given up
// while it is being made, unless another server is the primary: it has ConnectTimeout, or what the address says. Otherwise a node
// that gives up too early would begin anew again and again.
type hosts struct {
	config  *pgx.ConnConfig // of the address, with all servers
	several bool            // the address has several

	searches singleflight.Group // for the primary: all who wait share one

	mu         sync.Mutex
	primary    *pgx.ConnConfig // nil: not known
	found      time.Time       // when the primary was
	conns      map[*trackedConn]bool
	distrusted time.Time // connections that were made before are not used again
}

// server is where a server listens.
type server struct {
	host string
	port uint16
}

func serverOf(c *pgx.ConnConfig) server { return server{c.Host, c.Port} }

// newHosts makes a pool's connections go to the primary.
func newHosts(config *pgxpool.Config) *hosts {
	h := &hosts{config: config.ConnConfig.Copy(), conns: map[*trackedConn]bool{}}
	h.several = len(h.servers()) > 1
	config.BeforeConnect = func(ctx context.Context, c *pgx.ConnConfig) error {
		if h.several {
			primary, err := h.findPrimary(ctx)
			if err != nil {
				return err
			}
			c.Host, c.Port, c.TLSConfig, c.Fallbacks = primary.Host, primary.Port, primary.TLSConfig, primary.Fallbacks
		}
		h.follow(c)
		return nil
	}
	config.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool {
		return p.IdleDuration > time.Second && h.trusts(p.Conn) // else PrepareConn refuses it, and a ping may take long
	}
	config.PrepareConn = func(_ context.Context, c *pgx.Conn) (bool, error) { return h.trusts(c), nil }
	return h
}

// tracked is the key of a connection's trackedConn in its CustomData.
const tracked = "mtagd: tracked"

// follow tracks the connection that will be made, so that it can be closed. What is dialed once it is made is a request to
// cancel a statement: a server that is stopped would not answer it, and would be waited for.
func (h *hosts) follow(c *pgx.ConnConfig) {
	var made atomic.Bool
	var dialed *trackedConn // the last one: one goroutine dials and validates
	validate, dial, to := c.ValidateConnect, c.DialFunc, serverOf(c)
	c.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if validate != nil {
			if err := validate(ctx, conn); err != nil {
				return err
			}
		}
		made.Store(true)
		h.mu.Lock()
		defer h.mu.Unlock()
		dialed.made = time.Now()
		conn.CustomData()[tracked] = dialed
		return nil
	}
	c.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, ConnectTimeout)
		defer cancel()
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		if made.Load() {
			return conn, conn.SetDeadline(time.Now().Add(closeTimeout))
		}
		dialed = &trackedConn{Conn: conn, hosts: h, server: to}
		h.mu.Lock()
		defer h.mu.Unlock()
		h.conns[dialed] = true
		return dialed, nil
	}
}

// servers returns a configuration for each server. pgx has two entries for a server that may be reached with TLS or without.
func (h *hosts) servers() (servers []*pgx.ConnConfig) {
	byServer := map[server]*pgx.ConnConfig{}
	entries := append([]*pgconn.FallbackConfig{{Host: h.config.Host, Port: h.config.Port, TLSConfig: h.config.TLSConfig}}, h.config.Fallbacks...)
	for _, f := range entries {
		at := server{f.Host, f.Port}
		if c := byServer[at]; c != nil {
			c.Fallbacks = append(c.Fallbacks, f)
			continue
		}
		c := h.config.Copy()
		c.Host, c.Port, c.TLSConfig, c.Fallbacks = f.Host, f.Port, f.TLSConfig, nil
		byServer[at] = c
		servers = append(servers, c)
	}
	return servers
}

// forgetPrimary makes the next connection search for the primary.
func (h *hosts) forgetPrimary() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.primary = nil
}

var errNoPrimary = errors.New("no server of the address is a primary that answers")

// findPrimary returns the configuration of the primary.
func (h *hosts) findPrimary(ctx context.Context) (*pgx.ConnConfig, error) {
	h.mu.Lock()
	known := h.primary
	h.mu.Unlock()
	if known != nil {
		return known, nil
	}
	found := h.searches.DoChan("", func() (any, error) {
		primary, err := h.askAll()
		if err == nil {
			h.keepTo(primary)
		}
		return primary, err
	})
	select {
	case f := <-found:
		return f.Val.(*pgx.ConnConfig), f.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// keepTo sets the primary, and closes the connections to other servers.
func (h *hosts) keepTo(primary *pgx.ConnConfig) {
	h.mu.Lock()
	h.primary, h.found = primary, time.Now()
	h.mu.Unlock()
	h.closeThose(func(c *trackedConn) bool { return c.server != serverOf(primary) })
}

// askAll asks all servers at once. Of several that accept writes, it takes the one that was promoted last. While a server has not
// answered, it asks the others again: that one may be gone, and another may be promoted.
func (h *hosts) askAll() (*pgx.ConnConfig, error) {
	ctx, cancel := context.WithTimeout(context.Background(), ConnectTimeout)
	defer cancel()
	answers := make(chan probed)
	ask := func(s *pgx.ConnConfig, pause time.Duration) {
		time.Sleep(pause)
		select {
		case answers <- probe(ctx, s):
		case <-ctx.Done():
		}
	}
	servers := h.servers()
	for _, s := range servers {
		go ask(s, 0)
	}
	var best probed
	var grace <-chan time.Time
	last := map[server]error{} // by the servers that have answered
	for ctx.Err() == nil && len(last) < len(servers) {
		select {
		case got := <-answers:
			last[serverOf(got.config)] = got.err
			if got.err != nil {
				go ask(got.config, retryPause)
				continue
			}
			if grace == nil {
				grace = time.After(probeGrace)
			}
			if best.config == nil || got.timeline > best.timeline {
				best = got
			}
		case <-grace:
			return best.config, nil
		case <-ctx.Done():
		}
	}
	if best.config != nil {
		return best.config, nil
	}
	errs := []error{errNoPrimary}
	for _, s := range servers {
		err, answered := last[serverOf(s)]
		if !answered {
			err = fmt.Errorf("%s:%d has not answered in %v", s.Host, s.Port, ConnectTimeout)
		}
		errs = append(errs, err)
	}
	return nil, noPrimaryError{errors.New(errors.Join(errs...).Error())}
}

// noPrimaryError has the texts of the servers' errors. It does not wrap them: whatever they are, this is a failure to
// connect.
type noPrimaryError struct{ error }

// SafeToRetry is for pgconn.SafeToRetry.
func (noPrimaryError) SafeToRetry() bool { return true }

// probed is what a server says of itself.
type probed struct {
	config   *pgx.ConnConfig // of the server
	timeline string          // rises with each promotion: of two servers that accept writes, the lower one is old; "": unknown
	err      error           // it cannot be reached, or it is no primary
}

// probe asks a server whether it is the primary.
func probe(ctx context.Context, config *pgx.ConnConfig) (p probed) {
	p.config = config
	conn, err := pgx.ConnectConfig(ctx, config) // which checks that it accepts writes
	if err != nil {
		p.err = err
		return p
	}
	defer func() { _ = conn.PgConn().Conn().Close() }() // nothing is under way
	_ = conn.QueryRow(ctx, "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)").Scan(&p.timeline)
	return p
}

// trackedConn is a connection that the node can close.
type trackedConn struct {
	net.Conn
	hosts  *hosts
	server server

	made time.Time // zero: it is being made; hosts.mu guards it
}

func (t *trackedConn) Close() error {
	t.hosts.mu.Lock()
	delete(t.hosts.conns, t)
	t.hosts.mu.Unlock()
	return t.Conn.Close()
}

// SetDeadline bounds how long the driver waits for a server to end a connection: it counts as one of the pool's until then.
func (t *trackedConn) SetDeadline(at time.Time) error {
	if last := time.Now().Add(closeTimeout); at.After(last) {
		at = last
	}
	return t.Conn.SetDeadline(at)
}

// madeBefore reports whether a connection was made before a time. The caller holds hosts.mu.
func (t *trackedConn) madeBefore(at time.Time) bool { return !t.made.IsZero() && t.made.Before(at) }

// trusts reports whether a connection may be used.
func (h *hosts) trusts(c *pgx.Conn) bool {
	t := c.PgConn().CustomData()[tracked].(*trackedConn)
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.conns[t] && !t.madeBefore(h.distrusted)
}

// distrust ends the use of connections that were made before a time, and makes the next connection search for the primary if it
// was found before.
func (h *hosts) distrust(before time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.found.Before(before) {
		h.primary = nil
	}
	if h.distrusted.Before(before) {
		h.distrusted = before
	}
}

// closeThose closes connections, so that calls that wait for their server fail immediately.
func (h *hosts) closeThose(which func(*trackedConn) bool) {
	h.mu.Lock()
	var all []*trackedConn
	for c := range h.conns {
		if which(c) {
			all = append(all, c)
		}
	}
	h.mu.Unlock()
	for _, c := range all {
		_ = c.Close() // it was given up
	}
}
