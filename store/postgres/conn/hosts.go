package conn

import (
	"context"
	"errors"
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
	probeTimeout = 2 * time.Second        // for a server to say whether it is the primary
	probeGrace   = 100 * time.Millisecond // for others to say so too, after the first
	closeTimeout = time.Second            // for a server to end a connection or a statement that the node has given up
)

// hosts knows the servers of an address, which of them is the primary, and the connections to them. When the address has
// several servers, a connection is made to the primary alone: a server that is gone or stopped is not waited for.
type hosts struct {
	config *pgx.ConnConfig // of the address, with all servers

	searches singleflight.Group // for the primary: all who wait share one

	mu      sync.Mutex
	primary *pgx.ConnConfig // nil: not known
	conns   map[net.Conn]bool
}

// newHosts makes a pool's connections go to the primary.
func newHosts(config *pgxpool.Config) *hosts {
	h := &hosts{config: config.ConnConfig.Copy(), conns: map[net.Conn]bool{}}
	several := len(h.servers()) > 1
	config.BeforeConnect = func(ctx context.Context, c *pgx.ConnConfig) error {
		h.follow(c)
		if !several {
			return nil
		}
		primary, err := h.findPrimary(ctx)
		if err == nil {
			c.Host, c.Port, c.TLSConfig, c.Fallbacks = primary.Host, primary.Port, primary.TLSConfig, primary.Fallbacks
		}
		return err
	}
	return h
}

// follow tracks the connection that will be made, so that drop can close it. What is dialed once it is made is a request to
// cancel a statement: a server that is stopped would not answer it, and would be waited for.
func (h *hosts) follow(c *pgx.ConnConfig) {
	var made atomic.Bool
	validate, dial := c.ValidateConnect, c.DialFunc
	c.ValidateConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		if validate != nil {
			if err := validate(ctx, conn); err != nil {
				return err
			}
		}
		made.Store(true)
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
		h.mu.Lock()
		defer h.mu.Unlock()
		h.conns[conn] = true
		return &trackedConn{conn, h}, nil
	}
}

// servers returns a configuration for each server. pgx has two entries for a server that may be reached with TLS or without.
func (h *hosts) servers() (servers []*pgx.ConnConfig) {
	type server struct {
		host string
		port uint16
	}
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
		h.mu.Lock()
		defer h.mu.Unlock()
		h.primary = primary
		return primary, err
	})
	select {
	case f := <-found:
		return f.Val.(*pgx.ConnConfig), f.Err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// askAll asks all servers at once. Of several that accept writes, it takes the one that was promoted last.
func (h *hosts) askAll() (*pgx.ConnConfig, error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	servers := h.servers()
	answers := make(chan probed, len(servers))
	for _, s := range servers {
		go func() { answers <- probe(ctx, s) }()
	}
	var best probed
	errs := []error{errNoPrimary}
	var grace <-chan time.Time
	for range servers {
		select {
		case got := <-answers:
			if got.err != nil {
				errs = append(errs, got.err)
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
		}
	}
	if best.config == nil {
		return nil, noPrimaryError{errors.New(errors.Join(errs...).Error())}
	}
	return best.config, nil
}

// noPrimaryError has the texts of the servers' errors. It does not wrap them: whatever they are, this is a failure to
// connect.
type noPrimaryError struct{ error }

// SafeToRetry is for pgconn.SafeToRetry.
func (noPrimaryError) SafeToRetry() bool { return true }

// probed is what a server says of itself.
type probed struct {
	config   *pgx.ConnConfig
	timeline string // rises with each promotion: of two servers that accept writes, the lower one is old; "": unknown
	err      error  // it cannot be reached, or it is no primary
}

// probe asks a server whether it is the primary.
func probe(ctx context.Context, config *pgx.ConnConfig) (p probed) {
	conn, err := pgx.ConnectConfig(ctx, config) // which checks that it accepts writes
	if err != nil {
		return probed{err: err}
	}
	defer func() { _ = conn.PgConn().Conn().Close() }() // nothing is under way
	_ = conn.QueryRow(ctx, "SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)").Scan(&p.timeline)
	p.config = config
	return p
}

// trackedConn is a connection that drop can close.
type trackedConn struct {
	net.Conn
	hosts *hosts
}

func (t *trackedConn) Close() error {
	t.hosts.mu.Lock()
	delete(t.hosts.conns, t.Conn)
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

// closeAll closes all connections, so that calls that wait for a dead server fail immediately, and the next connection
// searches for the primary.
func (h *hosts) closeAll() {
	h.mu.Lock()
	h.primary = nil
	all := h.conns
	h.conns = map[net.Conn]bool{}
	h.mu.Unlock()
	for c := range all {
		_ = c.Close() // it was given up
	}
}
