package server

import (
	"context"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/valyala/fasthttp"

	"mtagd/bench/mtagbench/load"
)

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
		process, target, err := g.startOwn("queue", p.URL(), strconv.Itoa(connections))
		if err != nil {
			return servers, nil, err
		}
		servers, targets = append(servers, process), append(targets, target)
	}
	return servers, targets, nil
}
