package pgtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Cluster is a primary with standbys, of which any one must have a commit before it is acknowledged. Every process
// reaches every server through a link of its own.
type Cluster struct {
	Servers []*Server
	Primary int // its place in Servers

	links map[[2]string]*Link // by the names of who connects, and of the server
}

// clusterSettings: standbys and primary notice soon when the other is gone. Shared memory is in the server's directory,
// so that a killed server leaves none behind.
const clusterSettings = `
synchronous_standby_names = '%s'
dynamic_shared_memory_type = mmap
wal_sender_timeout = 2s
wal_receiver_timeout = 2s
wal_retrieve_retry_interval = 100ms
max_standby_streaming_delay = 0
wal_keep_size = 512MB
max_wal_size = 256MB
`

// NewCluster starts n servers, the first of which is the primary.
func NewCluster(n int) (*Cluster, error) {
	c := &Cluster{links: map[[2]string]*Link{}}
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("server%d", i)
	}
	quorum := "ANY 1 (" + strings.Join(names, ", ") + ")"
	for i, name := range names {
		s, err := newServer(name, Options{Disk: true})
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.Servers = append(c.Servers, s)
		if i == 0 {
			err = s.initialize(settings + fmt.Sprintf(clusterSettings, quorum))
		} else {
			err = c.Rejoin(i)
		}
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
	}
	return c, nil
}

// Close ends all servers and removes their files.
func (c *Cluster) Close() (err error) {
	for _, s := range c.Servers {
		err = errors.Join(err, s.Close())
	}
	for _, l := range c.links {
		err = errors.Join(err, l.close())
	}
	return err
}

// Link returns the link through which a process of this name reaches a server.
func (c *Cluster) Link(from string, server int) (*Link, error) {
	key := [2]string{from, c.Servers[server].Name}
	if c.links[key] == nil {
		l, err := newLink(filepath.Join(c.Servers[server].dir, ".s.PGSQL.5432"))
		if err != nil {
			return nil, err
		}
		c.links[key] = l
	}
	return c.links[key], nil
}

// Links returns all links of a process or server: those from it, and those to it.
func (c *Cluster) Links(name string) (links []*Link) {
	for key, l := range c.links {
		if key[0] == name || key[1] == name {
			links = append(links, l)
		}
	}
	return links
}

// URL returns the address of a database for a process: all servers, through links of its own.
func (c *Cluster) URL(from, database string) (string, error) {
	var hosts []string
	for i := range c.Servers {
		l, err := c.Link(from, i)
		if err != nil {
			return "", err
		}
		hosts = append(hosts, net.JoinHostPort("127.0.0.1", strconv.Itoa(l.Port())))
	}
	return "postgres://mtagd@" + strings.Join(hosts, ",") + "/" + database + "?sslmode=disable", nil
}

// Standbys returns the places of the servers that are not the primary.
func (c *Cluster) Standbys() (standbys []int) {
	for i := range c.Servers {
		if i != c.Primary {
			standbys = append(standbys, i)
		}
	}
	return standbys
}

// Rejoin makes a server a new standby with a copy of the primary. What it had is gone.
func (c *Cluster) Rejoin(i int) error {
	s := c.Servers[i]
	if err := s.Kill(); err != nil {
		return err
	}
	if err := os.RemoveAll(s.DataDir()); err != nil {
		return err
	}
	if err := s.run("pg_basebackup", "-D", s.DataDir(), "-d", fmt.Sprintf("host=%s user=mtagd", c.Servers[c.Primary].dir), "-X", "stream", "-c", "fast", "--no-sync"); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.DataDir(), "standby.signal"), nil, 0o600); err != nil {
		return err
	}
	if who, err := s.credential(); err != nil {
		return err
	} else if who != nil {
		if err := os.Chown(filepath.Join(s.DataDir(), "standby.signal"), int(who.Uid), int(who.Gid)); err != nil {
			return err
		}
	}
	if err := c.follow(i); err != nil {
		return err
	}
	return s.Start()
}

// follow makes a standby follow the primary, when it reads its settings the next time.
func (c *Cluster) follow(i int) error {
	s := c.Servers[i]
	l, err := c.Link(s.Name, c.Primary)
	if err != nil {
		return err
	}
	l.Set(LinkOpen)
	return s.configure(fmt.Sprintf("primary_conninfo = 'host=127.0.0.1 port=%d user=mtagd application_name=%s sslmode=disable connect_timeout=2'", l.Port(), s.Name))
}

// Promote makes the standby that has received most the primary, and the others follow it. First the old primary, which
// may still run, loses its standbys: so it acknowledges nothing more that the new one has not. Rejoin brings it back.
func (c *Cluster) Promote(ctx context.Context) error {
	old := c.Primary
	best, most := -1, int64(-1)
	for _, i := range c.Standbys() {
		l, err := c.Link(c.Servers[i].Name, old)
		if err != nil {
			return err
		}
		l.Set(LinkCut)
		received, err := c.Servers[i].received(ctx)
		if err != nil {
			return err
		}
		if received > most {
			best, most = i, received
		}
	}
	if err := c.Servers[best].Promote(); err != nil {
		return err
	}
	c.Primary = best
	for _, i := range c.Standbys() {
		if i == old {
			continue
		}
		if err := errors.Join(c.follow(i), c.Servers[i].exec("SELECT pg_reload_conf()")); err != nil {
			return err
		}
	}
	return nil
}

// AwaitStandbys waits until all standbys follow the primary.
func (c *Cluster) AwaitStandbys(ctx context.Context) error {
	return c.Servers[c.Primary].until(ctx, func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		var n int
		err := conn.QueryRow(ctx, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND application_name LIKE 'server%'").Scan(&n)
		return n == len(c.Servers)-1, err
	})
}

// received waits until a standby has lost its primary, and returns how much it has received.
func (s *Server) received(ctx context.Context) (position int64, err error) {
	err = s.until(ctx, func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		var streams bool
		err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming'),
			greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0'::pg_lsn`).Scan(&streams, &position)
		return !streams, err
	})
	return position, err
}

// until waits until a condition holds in a server.
func (s *Server) until(ctx context.Context, holds func(context.Context, *pgx.Conn) (bool, error)) error {
	conn, err := pgx.Connect(ctx, s.URL("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for {
		ok, err := holds(ctx, conn)
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", s.Name, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}
