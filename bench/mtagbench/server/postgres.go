package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/procfs"
	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"

	"mtagd/bench/mtagbench/load"
	"mtagd/store/pgtest"
)

// Postgres is a primary and one synchronous standby, on 127.0.0.1. A commit returns when both have it on disk.
type Postgres struct {
	*pgx.Conn        // to the database
	Primary, Standby *pgtest.Server
}

// postgresSettings are what the guide recommends for a server with 8 GB. Durability is as by default.
const postgresSettings = `
max_connections = 400
shared_buffers = 2GB
max_wal_size = 4GB
checkpoint_timeout = 15min
wal_compression = on
jit = off
track_io_timing = off
autovacuum_naptime = 10s
log_min_messages = warning
`

const benchDatabase = "mtagd"

// StartPostgres starts both servers with an empty database, in new directories below temp (empty: the system's). It
// refuses a directory in memory, because each commit waits for the disk.
func StartPostgres(temp string) (p *Postgres, err error) {
	var fs unix.Statfs_t
	if temp == "" {
		temp = os.TempDir()
	}
	if err := unix.Statfs(temp, &fs); err != nil {
		return nil, err
	}
	if fs.Type == unix.TMPFS_MAGIC {
		return nil, fmt.Errorf("--temp %s is in memory: name a directory on a disk", temp)
	}
	p = new(Postgres)
	defer func() {
		if err != nil {
			err = errors.Join(err, p.Close())
		}
	}()
	if p.Primary, err = pgtest.Start(pgtest.Options{Temp: temp, Settings: postgresSettings, TCP: true}); err != nil {
		return nil, err
	}
	if p.Standby, err = p.Primary.Standby("standby", true); err != nil {
		return nil, err
	}
	if err = p.Primary.Exec("CREATE DATABASE " + benchDatabase); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	p.Conn, err = pgx.Connect(ctx, p.URL())
	return p, err
}

// URL is the address of the database.
func (p *Postgres) URL() string { return p.Primary.URL(benchDatabase) }

func (p *Postgres) Close() (err error) {
	if p.Conn != nil {
		err = p.Conn.Close(context.Background())
	}
	for _, s := range []*pgtest.Server{p.Standby, p.Primary} {
		if s != nil {
			err = errors.Join(err, s.Close())
		}
	}
	return err
}

const userHZ = 100 // of /proc, on all platforms

// CPUTime is the processor time that a server's processes have used, those that have ended included.
func CPUTime(s *pgtest.Server) (time.Duration, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return 0, err
	}
	seconds := 0.0
	found := false
	for _, p := range all {
		stat, err := p.Stat()
		if err != nil {
			continue // it has just ended
		}
		switch s.PID() {
		case stat.PID:
			found = true
			seconds += stat.CPUTime() + float64(stat.CUTime+stat.CSTime)/userHZ
		case stat.PPID:
			seconds += stat.CPUTime()
		}
	}
	if !found {
		return 0, errors.New("a PostgreSQL server has ended")
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// The peer of the engine on PostgreSQL: a table that has one row for each request, filled as people do it.
const (
	createQueue = `CREATE TABLE queue (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, created timestamptz NOT NULL DEFAULT now(), payload json NOT NULL)`
	fillQueue   = `INSERT INTO queue (payload) VALUES ($1)`
)

// NewQueueServer makes a server that inserts the body of each request as a row, in a transaction of its own.
func NewQueueServer(pool *pgxpool.Pool) *fasthttp.Server {
	return &fasthttp.Server{
		Handler: func(ctx *fasthttp.RequestCtx) {
			if _, err := pool.Exec(context.Background(), fillQueue, ctx.PostBody()); err != nil {
				ctx.Error(err.Error(), fasthttp.StatusInternalServerError)
				return
			}
			ctx.SetStatusCode(fasthttp.StatusCreated)
		},
		NoDefaultServerHeader: true,
	}
}

// StartQueues creates the table, and starts n servers with so many connections each.
func (g *Group) StartQueues(p *Postgres, n, connections int) (servers []*Process, targets []load.Target, err error) {
	if _, err := p.Exec(g.ctx, createQueue); err != nil {
		return nil, nil, err
	}
	for range n {
		process, target, err := g.StartOwn("queue", p.URL(), strconv.Itoa(connections))
		if err != nil {
			return servers, nil, err
		}
		servers, targets = append(servers, process), append(targets, target)
	}
	return servers, targets, nil
}
