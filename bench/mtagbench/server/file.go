package server

import (
	"errors"
	"os"

	"mtagd/bench/mtagbench/load"
)

// StartFile starts the synced file, with the name of a new file.
func (g *Group) StartFile(file string) (*Process, load.Target, error) {
	return g.startOwn("file", file)
}

// startOwn starts a server that is a hidden command of this program, and prints its address.
func (g *Group) startOwn(command string, args ...string) (p *Process, t load.Target, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, t, err
	}
	if p, err = g.start(self, append([]string{command}, args...)...); err != nil {
		return nil, t, err
	}
	address, err := p.findInOutput(func(line string) string { return line })
	if err == nil {
		t, err = load.NewTarget(address, address, "/mark/tag")
	}
	if err != nil {
		return nil, t, errors.Join(err, p.Kill())
	}
	return p, t, nil
}
