package main

import (
	"bytes"
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
func (c *profileCommand) Run(p *program) error {
	return p.measure("", func(dir string, servers *server.Group) error {
		mtagd, err := servers.StartMtagd(c.Server, filepath.Join(dir, "data"))
		if err != nil {
			return err
		}
		p.progress("filling")
		data, _, err := dataset.Fill(p.ctx, mtagd.API, 300_000, fillDays, 10)
		if err != nil {
			return err
		}
		taken, err := takeProfile(p, mtagd, data)
		if err := errors.Join(err, mtagd.Stop()); err != nil {
			return err
		}
		return writeProfile(c.File, taken)
	})
}

// takeProfile profiles the server while it takes events in each phase, and then lists them.
func takeProfile(p *program, mtagd *server.Mtagd, data *dataset.Manifest) ([]byte, error) {
	loaded, err := mtagd.API.AddMerchant("load")
	if err != nil {
		return nil, err
	}
	t, long := mtagd.MarkTarget(&loaded), profileSeconds*time.Second
	phases := []load.Phase{
		load.ClosedLoop(t, load.Plain, manyConnections, 1, long),
		load.ClosedLoop(t, load.Plain, fewConnections, 1, long),
		load.ClosedLoop(t, load.Identified, manyConnections, 1, long),
		load.ClosedLoop(t, load.Plain, batchConnections, batchEvents, long),
	}
	var taken []byte
	profiled := make(chan error, 1)
	go func() {
		var err error
		taken, err = mtagd.AdminPage(fmt.Sprintf("/debug/pprof/profile?seconds=%d", profileSeconds*(len(phases)+1)))
		profiled <- err
	}()
	for i, phase := range phases {
		p.progress("load %d of %d", i+1, len(phases))
		if _, err := load.RunAccepted(p.ctx, phase); err != nil {
			return nil, err
		}
	}
	p.progress("listing")
	if _, err := dataset.ListEachKind(p.ctx, mtagd.API, data, 200); err != nil {
		return nil, err
	}
	err = <-profiled
	return taken, err
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
