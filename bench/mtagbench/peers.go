package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/valyala/fasthttp"

	"mtagd/bench"
	"mtagd/bench/mtagbench/dataset"
	"mtagd/bench/mtagbench/server"
)

// fileCommand is the server that mtagd is compared with.
type fileCommand struct {
	File string `arg:"" help:"A new file."`
}

func (c *fileCommand) Run(p *program) error {
	file, err := os.OpenFile(c.File, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer file.Close()
	synced, err := bench.NewSyncedServer(file)
	if err != nil {
		return err
	}
	return serve(p, synced.Server)
}

// queueCommand is the server that the engine on PostgreSQL is compared with.
type queueCommand struct {
	Store       string `arg:"" help:"PostgreSQL database with the table queue."`
	Connections int32  `arg:"" help:"Database connections."`
}

func (c *queueCommand) Run(p *program) error {
	config, err := pgxpool.ParseConfig(c.Store)
	if err != nil {
		return err
	}
	config.MaxConns = c.Connections
	pool, err := pgxpool.NewWithConfig(p.ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	return serve(p, server.NewQueueServer(pool))
}

// serve prints the address and serves until a signal ends it.
func serve(p *program, s *fasthttp.Server) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	stop := context.AfterFunc(p.ctx, func() { _ = s.Shutdown() }) // Serve returns the listener's errors
	defer stop()
	fmt.Fprintln(p.stdout, listener.Addr())
	return s.Serve(listener)
}

// listing is the input of a process that lists while another one sends events.
type listing struct {
	Address  string // of the server
	Host     string // of the partner API
	Key      string
	Data     dataset.Dataset
	Rate     float64 // queries a second
	Duration time.Duration
}

// listCommand prints how long each query took. It is a process of its own: beside the load generator, each answer would wait
// for the goroutine that drives the load.
type listCommand struct{}

func (listCommand) Run(p *program) error {
	var l listing
	if err := json.NewDecoder(os.Stdin).Decode(&l); err != nil {
		return err
	}
	api, err := dataset.NewClient(l.Address, l.Host, l.Key)
	if err != nil {
		return err
	}
	return dataset.ListSteadily(p.ctx, api, &l.Data, l.Rate, l.Duration, func(took time.Duration) {
		fmt.Fprintln(p.stdout, took)
	})
}
