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
	File   string        `arg:"" help:"Where the profile goes, such as cmd/mtagd/default.pgo."`
	Server string        `default:"bin/mtagd" placeholder:"FILE" help:"The mtagd to profile (default ${default})."`
	Round  time.Duration `default:"8s" help:"Length of each kind of load (default ${default})."`
}

// Run loads a server of its own with all that it is to be fast at, and writes its CPU profile.
func (c *profileCommand) Run(p *program) (err error) {
	if c.Round < time.Second {
		return errors.New("--round must be at least 1s")
	}
	dir, err := os.MkdirTemp("", "mtagbench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	s, err := newService(ctx, c.Server, filepath.Join(dir, "data"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
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
	identified := marking(t, manyConnections, 1, c.Round)
	identified.next = newMarks(t, 1, true).next
	phases := []phase{
		marking(t, manyConnections, 1, c.Round),
		marking(t, fewConnections, 1, c.Round),
		identified,
		marking(t, batchConnections, batchEvents, c.Round),
	}
	type answer struct {
		text []byte
		err  error
	}
	profiled := make(chan answer, 1)
	go func() {
		text, err := s.page(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(c.Round.Seconds())*(len(phases)+1)))
		profiled <- answer{text, err}
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
	a := <-profiled
	if a.err != nil {
		return a.err
	}
	return writeProfile(c.File, a.text)
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
