package server

import (
	"context"
	"errors"
	"os"

	"mtagd/bench/mtagbench/load"
)

// StartBare starts the bare server.
func StartBare(ctx context.Context) (*Process, load.Target, error) { return startOwn(ctx, "bare") }

// StartSynced starts the bare server that syncs each body to a new file.
func StartSynced(ctx context.Context, file string) (*Process, load.Target, error) {
	return startOwn(ctx, "bare", "--file", file)
}

// startOwn starts a server that is a command of this program, and prints its address.
func startOwn(ctx context.Context, command ...string) (*Process, load.Target, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, load.Target{}, err
	}
	p, err := startProcess(ctx, self, command...)
	if err != nil {
		return nil, load.Target{}, err
	}
	var t load.Target
	address, err := p.findInOutput(ctx, func(line string) string { return line })
	if err == nil {
		t, err = load.ParseTarget("http://"+address+"/mark/bare", "")
	}
	if err != nil {
		return nil, load.Target{}, errors.Join(err, p.Kill())
	}
	return p, t, nil
}
