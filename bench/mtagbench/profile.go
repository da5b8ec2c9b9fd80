package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/google/pprof/profile"

	"mtagd/bench/mtagbench/dataset"
	"mtagd/bench/mtagbench/load"
	"mtagd/bench/mtagbench/server"
)

type profileCommand struct {
	File   string `arg:"" help:"File to write the profile to, such as cmd/mtagd/default.pgo."`
	Server string `default:"bin/mtagd" placeholder:"FILE" help:"The mtagd to profile (default ${default})."`
}

// profileSeconds is how long each kind of load is profiled.
const profileSeconds = 8

// Run starts a server, makes it do everything that must be fast, and writes its CPU profile.
func (c *profileCommand) Run(p *program) (err error) {
	dir, err := os.MkdirTemp("", "mtagbench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	mtagd, err := server.StartMtagd(ctx, c.Server, filepath.Join(dir, "data"))
	if err != nil {
		return err
	}
	defer func() {
		cancel()
		mtagd.Wait()
	}()
	p.progress("filling")
	data, _, err := dataset.Fill(ctx, mtagd.API, 300_000, fillDays, 10, dataset.Ordered)
	if err != nil {
		return err
	}
	taken, err := takeProfile(ctx, p, mtagd, data)
	if err != nil {
		return err
	}
	if err := mtagd.Stop(); err != nil {
		return err
	}
	return writeProfile(c.File, taken)
}

// takeProfile profiles the server while it takes events in each phase, and then lists them.
func takeProfile(ctx context.Context, p *program, mtagd *server.Mtagd, data *dataset.Manifest) ([]byte, error) {
	loaded, err := mtagd.API.AddMerchant("load")
	if err != nil {
		return nil, err
	}
	phases := profiledPhases(mtagd.MarkTarget(&loaded))
	var taken []byte
	profiled := make(chan error, 1)
	go func() {
		var err error
		taken, err = mtagd.AdminPage(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", profileSeconds*(len(phases)+1)))
		profiled <- err
	}()
	for i, phase := range phases {
		p.progress("load %d of %d", i+1, len(phases))
		r, err := load.Run(ctx, phase)
		if err == nil {
			err = r.AllAccepted()
		}
		if err != nil {
			return nil, err
		}
	}
	p.progress("listing")
	if _, err := dataset.ListEachKind(ctx, mtagd.API, data, 200); err != nil {
		return nil, err
	}
	err = <-profiled
	return taken, err
}

func profiledPhases(t load.Target) []load.Phase {
	return []load.Phase{
		load.ClosedLoop(t, manyConnections, 1, profileSeconds*time.Second),
		load.ClosedLoop(t, fewConnections, 1, profileSeconds*time.Second),
		load.IdentifiedClosedLoop(t, manyConnections, profileSeconds*time.Second),
		load.ClosedLoop(t, batchConnections, batchEvents, profileSeconds*time.Second),
	}
}

// writeProfile writes a profile without the path and build id of the profiled program.
func writeProfile(file string, text []byte) error {
	p, err := profile.ParseData(text)
	if err != nil {
		return err
	}
	for _, m := range p.Mapping {
		m.File, m.BuildID = "", ""
	}
	var out bytes.Buffer
	if err := p.Write(&out); err != nil {
		return err
	}
	return os.WriteFile(file, out.Bytes(), 0o666)
}
