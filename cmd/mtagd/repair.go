package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"mtagd/store"
)

// repairCommand is "mtagd repair".
type repairCommand struct {
	To string `required:"" placeholder:"NEWDIR" help:"The new data directory. It must be empty, or not exist."`
}

func (*repairCommand) Help() string {
	return "It reads the files of --data one by one, and never changes them. It prints what is lost. " +
		"The exit code is 0 when the new directory is sound, also when something is lost."
}

// Run repairs, and verifies the result.
func (c *repairCommand) Run(p *process) error {
	if err := p.withoutStore(); err != nil {
		return err
	}
	if _, err := os.Stat(p.data); err != nil {
		return fmt.Errorf("data directory %s cannot be read: %w", p.data, err)
	}
	if inside, err := filepath.Rel(p.data, c.To); err == nil && filepath.IsLocal(inside) {
		return &usageError{where: "--to", err: errors.New("must not be inside the data directory")}
	}
	lost := 0
	if err := repairData(p.ctx, p.data, c.To, slog.New(slog.DiscardHandler), func(f store.Finding) {
		lost++
		fmt.Fprintf(p.stdout, "%s: %s %s%s\n", f.Part, f.Where, f.Problem, eventsText(f))
	}); err != nil {
		return err
	}
	if lost == 0 {
		fmt.Fprintln(p.stdout, "nothing is lost")
	}
	findings, counts, err := verifyShowing(p, func(v store.Verification) (store.Verified, error) { return verifyClosed(p.ctx, c.To, v) })
	if err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "\nthe new directory %s:\n", c.To)
	if err := (&verifyCommand{}).print(p.stdout, findings, counts); err != nil {
		return err
	}
	if len(findings) > 0 {
		return fmt.Errorf("%s is not sound: findings: %d", c.To, len(findings))
	}
	return nil
}
