package main

import (
	"context"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5/pgxpool"

	"mtagd/bench/mtagbench/load"
	"mtagd/bench/mtagbench/server"
)

// queueCommand is the peer.
type queueCommand struct {
	Store       string `required:"" placeholder:"URL" help:"PostgreSQL database with the table queue."`
	HTTP        string `name:"http" default:"127.0.0.1:0" placeholder:"ADDR" help:"Loopback address to listen on (default ${default})."`
	Connections int    `default:"64" help:"Database connections (default ${default})."`
}

// Run prints the address and serves until a signal ends it.
func (c *queueCommand) Run(p *program) error {
	config, err := pgxpool.ParseConfig(c.Store)
	if err != nil {
		return err
	}
	config.MaxConns = int32(c.Connections)
	pool, err := pgxpool.NewWithConfig(p.ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := load.ParseTarget("http://"+c.HTTP, ""); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", c.HTTP)
	if err != nil {
		return err
	}
	queue := server.NewQueueServer(pool)
	stop := context.AfterFunc(p.ctx, func() { _ = queue.Shutdown() }) // errors of the listener are Serve's result
	defer stop()
	fmt.Fprintln(p.stdout, listener.Addr())
	return queue.Serve(listener)
}
