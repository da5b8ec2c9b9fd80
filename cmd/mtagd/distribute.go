package main

import (
	"errors"
	"fmt"

	"mtagd/store/postgres/schema"
)

// storeCommands are "mtagd store …".
type storeCommands struct {
	Distribute distributeCommand `cmd:"" help:"Spread the tables of the --store database over the workers of a Citus cluster. Nodes may run meanwhile."`
}

// distributeCommand is "mtagd store distribute".
type distributeCommand struct{}

func (*distributeCommand) Help() string {
	return "The database needs the extension citus, on the coordinator and on at least one worker. Tables move one after the other. " +
		"What writes to a table waits while it moves, and answers 503 if that takes more than a few seconds. After an interruption, " +
		"run the command again: it goes on. When everything is in its place, it changes nothing. Later, the first node that starts after an " +
		"update distributes new tables. The command also turns off jit for the user of the address, on all workers: compiling most statements " +
		"of a node takes longer than running them."
}

// Run distributes the tables, and prints where each one is now.
func (*distributeCommand) Run(p *process) error {
	if p.store == "" {
		return &usageError{where: "--store", err: errors.New("must name the database that is to be distributed")}
	}
	done, err := schema.Distribute(p.ctx, p.store)
	if err != nil {
		return fmt.Errorf("--store: %w", err)
	}
	return printJSON(p.stdout, done)
}
