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
)

// profileCommand takes the profile that the compiler optimises mtagd by.
type profileCommand struct {
	File   string `arg:"" help:"Where the profile goes, such as cmd/mtagd/default.pgo."`
	Server string `default:"bin/mtagd" placeholder:"FILE" help:"The mtagd to profile (default ${default})."`
}

// profileSeconds is how long each kind of load is profiled.
const profileSeconds = 8

// Run loads a server of its own with all that it is to be fast at, and writes its CPU profile.
func (c *profileCommand) Run(p *program) (err error) {
	dir, err := os.MkdirTemp("", "mtagbench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithCancel(p.ctx)
	s, err := newService(ctx, c.Server, filepath.Join(dir, "data"))
	defer func() {
		cancel()
		if s != nil && s.process != nil {
			<-s.exited
		}
	}()
	if err != nil {
		return err
	}
	p.progress("filling")
	data, _, err := fill(ctx, s.api, 300_000, 400, 10, "ordered")
	if err != nil {
		return err
	}
	loaded, err := s.api.newDataset("load")
	if err != nil {
		return err
	}
	t := s.mark(&loaded)
	phases := []phase{
		marking(t, manyConnections, 1, profileSeconds*time.Second),
		marking(t, fewConnections, 1, profileSeconds*time.Second),
		identifying(t, manyConnections, profileSeconds*time.Second),
		marking(t, batchConnections, batchEvents, profileSeconds*time.Second),
	}
	var taken []byte
	profiled := make(chan error, 1)
	go func() {
		var err error
		taken, err = s.page(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", profileSeconds*(len(phases)+1)))
		profiled <- err
	}()
	for i, phase := range phases {
		p.progress("load %d of %d", i+1, len(phases))
		r, err := load(ctx, phase)
		if err == nil {
			err = r.healthy()
		}
		if err != nil {
			return err
		}
	}
	p.progress("listing")
	if _, err := listAll(ctx, s.api, data, 200); err != nil {
		return err
	}
	if err := <-profiled; err != nil {
		return err
	}
	if err := s.stop(); err != nil {
		return err
	}
	return writeProfile(c.File, taken)
}

// writeProfile writes a profile without the path of the program that it was taken of.
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
