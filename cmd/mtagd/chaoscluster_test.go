package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"mtagd/store/pgtest"
	"mtagd/store/testenv"
)

// cluster is a primary with standbys, of which any one must have a commit before it is acknowledged. Every process
// reaches every server through a link of its own.
type cluster struct {
	servers []*pgtest.Server
	disks   []serverDisk // of the servers
	primary int          // its place in servers

	links map[[2]string]*link // by the names of who connects, and of the server
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

// newCluster starts n servers, the first of which is the primary.
func newCluster(n int) (*cluster, error) {
	c := &cluster{links: map[[2]string]*link{}}
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("server%d", i)
	}
	quorum := "ANY 1 (" + strings.Join(names, ", ") + ")"
	for _, name := range names {
		if err := c.add(name, pgtest.Settings+fmt.Sprintf(clusterSettings, quorum)); err != nil {
			return nil, errors.Join(err, c.close())
		}
	}
	return c, nil
}

// add starts a server: the first is the primary, and has the settings.
func (c *cluster) add(name, settings string) error {
	disk, err := mountServerDisk()
	c.disks = append(c.disks, disk)
	if err != nil {
		return err
	}
	s, err := pgtest.New(name, pgtest.Options{Temp: disk.dir, Settings: settings})
	if err != nil {
		return err
	}
	c.servers = append(c.servers, s)
	if len(c.servers) == 1 {
		return s.Init()
	}
	return c.rejoin(len(c.servers) - 1)
}

// close ends all servers and removes their files.
func (c *cluster) close() (err error) {
	for _, s := range c.servers {
		err = errors.Join(err, s.Close())
	}
	for _, d := range c.disks {
		if d.unmount != nil {
			err = errors.Join(err, d.unmount())
		}
	}
	for _, l := range c.links {
		err = errors.Join(err, l.close())
	}
	return err
}

// link returns the link through which a process of this name reaches a server.
func (c *cluster) link(from string, server int) (*link, error) {
	key := [2]string{from, c.servers[server].Name}
	if c.links[key] == nil {
		l, err := newLink(filepath.Join(c.servers[server].Dir(), ".s.PGSQL.5432"))
		if err != nil {
			return nil, err
		}
		c.links[key] = l
	}
	return c.links[key], nil
}

// url returns the address of a database for a process: all servers, through links of its own.
func (c *cluster) url(from, database string) (string, error) {
	var hosts []string
	for i := range c.servers {
		l, err := c.link(from, i)
		if err != nil {
			return "", err
		}
		hosts = append(hosts, net.JoinHostPort("127.0.0.1", strconv.Itoa(l.port())))
	}
	return "postgres://mtagd@" + strings.Join(hosts, ",") + "/" + database + "?sslmode=disable", nil
}

// standbys returns the places of the servers that are not the primary.
func (c *cluster) standbys() (standbys []int) {
	for i := range c.servers {
		if i != c.primary {
			standbys = append(standbys, i)
		}
	}
	return standbys
}

// rejoin makes a server a new standby with a copy of the primary. What it had is gone.
func (c *cluster) rejoin(i int) error {
	s := c.servers[i]
	if err := s.Kill(); err != nil {
		return err
	}
	if err := os.RemoveAll(s.DataDir()); err != nil {
		return err
	}
	// On a busy machine, pg_basebackup may stand still for longer than the time-out of clusterSettings, which would end it.
	if err := s.Run("pg_basebackup", "-D", s.DataDir(), "-d", fmt.Sprintf("host=%s user=mtagd options='-c wal_sender_timeout=0'", c.servers[c.primary].Dir()), "-X", "stream", "-c", "fast", "--no-sync"); err != nil {
		return err
	}
	if err := s.Run("touch", filepath.Join(s.DataDir(), "standby.signal")); err != nil {
		return err
	}
	if err := c.follow(i); err != nil {
		return err
	}
	return s.Start()
}

// follow makes a standby follow the primary, when it reads its settings the next time.
func (c *cluster) follow(i int) error {
	s := c.servers[i]
	l, err := c.link(s.Name, c.primary)
	if err != nil {
		return err
	}
	l.set(linkOpen)
	return s.Configure(fmt.Sprintf("primary_conninfo = 'host=127.0.0.1 port=%d user=mtagd application_name=%s sslmode=disable connect_timeout=2'", l.port(), s.Name))
}

// promote makes the standby that has received most the primary, and the others follow it. First the old primary, which
// may still run, loses its standbys: so it acknowledges nothing more that the new one has not. rejoin brings it back.
func (c *cluster) promote(ctx context.Context) error {
	old := c.primary
	best, most := -1, int64(-1)
	for _, i := range c.standbys() {
		l, err := c.link(c.servers[i].Name, old)
		if err != nil {
			return err
		}
		l.set(linkCut)
		received, err := received(ctx, c.servers[i])
		if err != nil {
			return err
		}
		if received > most {
			best, most = i, received
		}
	}
	if err := c.servers[best].Promote(); err != nil {
		return err
	}
	c.primary = best
	for _, i := range c.standbys() {
		if i == old {
			continue
		}
		if err := errors.Join(c.follow(i), c.servers[i].Exec("SELECT pg_reload_conf()")); err != nil {
			return err
		}
	}
	return nil
}

// awaitStandbys waits until all standbys follow the primary.
func (c *cluster) awaitStandbys(ctx context.Context) error {
	return until(ctx, c.servers[c.primary], func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		var n int
		err := conn.QueryRow(ctx, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND application_name LIKE 'server%'").Scan(&n)
		return n == len(c.servers)-1, err
	})
}

// received waits until a standby has lost its primary, and returns how much it has received.
func received(ctx context.Context, s *pgtest.Server) (position int64, err error) {
	err = until(ctx, s, func(ctx context.Context, conn *pgx.Conn) (bool, error) {
		var streams bool
		err := conn.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming'),
			greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn()) - '0/0'::pg_lsn`).Scan(&streams, &position)
		return !streams, err
	})
	return position, err
}

// until waits until a condition holds in a server.
func until(ctx context.Context, s *pgtest.Server, holds func(context.Context, *pgx.Conn) (bool, error)) error {
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

// A cluster survives what tests do to it.
func TestCluster(t *testing.T) {
	pgtest.Need(t)
	c, err := newCluster(3)
	testenv.Check(t, err)
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
	ctx := t.Context()
	write := func() {
		t.Helper()
		testenv.Check(t, c.servers[c.primary].Exec("INSERT INTO seen VALUES (1)"))
	}
	testenv.Check(t, c.awaitStandbys(ctx))
	testenv.Check(t, c.servers[0].Exec("CREATE TABLE seen (n int)"))
	for range 2 {
		write()
		old := c.primary
		testenv.Check(t, crash(c.servers[old]))
		testenv.Check(t, c.promote(ctx))
		write()
		testenv.Check(t, c.rejoin(old))
		testenv.Check(t, c.awaitStandbys(ctx))
	}
	thaw, err := c.servers[c.primary].Freeze()
	testenv.Check(t, err)
	testenv.Check(t, thaw())
	write()
	testenv.Check(t, crash(c.servers[c.primary]))
	testenv.Check(t, c.servers[c.primary].Start())
	testenv.Check(t, c.awaitStandbys(ctx))
	write()
}
