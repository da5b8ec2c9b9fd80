package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"mtagd/cmd/mtagd/operator"
	"mtagd/store"
	"mtagd/store/local"
	"mtagd/store/migrate"
	"mtagd/store/postgres"
)

// migrateCommand is "mtagd migrate --to URL" or "mtagd migrate --to DIR".
type migrateCommand struct {
	To           string `required:"" placeholder:"URL|DIR" help:"Where the data goes: a database, such as postgres://mtagd@db1,db2/mtagd, or a data directory. It must be new or empty, or what a migration that was cut off has left. A password in it is a secret: set it in the environment."`
	AcceptDamage bool   `help:"Go on although some data of a data directory is damaged. What cannot be read is left out."`
}

func (*migrateCommand) Help() string {
	return "With the URL of a database, the data of --data goes there: a running server goes on serving, and at the end goes on with the database. " +
		"The switch takes seconds, in which the service answers 503; after 30 seconds it is given up. When it has ended with 0, change --store in the configuration of the service. " +
		"With a directory, the data of the database of --store goes there: stop all nodes first, and then start the service with --data. " +
		"All data is compared on both sides before the end. Until then the source is as before, and the target cannot be opened. " +
		"A migration that was cut off is begun again by the same command."
}

// migration is what a running server is asked to do.
type migration struct{ To string }

// errDamaged is the error of a migration that was not begun.
var errDamaged = errors.New("some data is damaged, and nothing was copied. Restore it from a backup, or leave it out with --accept-damage")

// Run migrates in the direction that --to says.
func (c *migrateCommand) Run(p *process) error {
	toDatabase := checkStore(c.To) == nil
	switch {
	case c.To == "" || !toDatabase && strings.Contains(c.To, "://"):
		return &usageError{where: p.origin.of("to"), err: errors.New("must be an address such as postgres://mtagd@db1,db2/mtagd, or a directory")}
	case toDatabase && p.store != "":
		return &usageError{where: p.origin.of("store"), err: errors.New("must not be set: --data names what is migrated, and --to the database")}
	case !toDatabase && p.store == "":
		return &usageError{where: "--store", err: errors.New("must name the database that is migrated to the directory of --to")}
	case !toDatabase && c.AcceptDamage:
		return &usageError{where: p.origin.of("accept-damage"), err: errNotWithStore}
	}
	bar := newProgressBar(p.stderr, "migrate")
	run := c.toDirectory
	if toDatabase {
		run = c.toDatabase
	}
	result, next, err := run(p, bar)
	bar.end()
	switch {
	case err == nil:
	case toDatabase && (p.ctx.Err() != nil || errors.Is(err, operator.ErrStopped)):
		return fmt.Errorf("migrate: %w. Run the same command again: it begins again, or says that the data has moved", cmp.Or(context.Cause(p.ctx), err))
	default:
		return fmt.Errorf("migrate: %w", err)
	}
	fmt.Fprintln(p.stderr, "mtagd: "+next)
	if result == nil {
		return nil
	}
	return printJSON(p.stdout, result)
}

// toDatabase moves a data directory into a database, in the running server if there is one. next says what is to be done then. The
// result is nil when an earlier run has moved the data.
func (c *migrateCommand) toDatabase(p *process, bar *progressBar) (result *migrate.Result, next string, err error) {
	if err := existingData(p.data); err != nil {
		return nil, "", err
	}
	if next, err := c.finish(p); next != "" || err != nil {
		return nil, next, err
	}
	if err := c.verify(p, bar); err != nil {
		return nil, "", err
	}
	var of migrate.Result
	err = operator.Ask(p.ctx, p.data, migratePath, migration{c.To}, func(m operator.Message) { bar.count(migrate.Phase(m.Step), m.Done) }, &of)
	next = "everything is in the database, and the server goes on with it."
	if operator.IsNoServer(err) {
		of, err = migrateClosed(p, c.To, bar)
		next = "everything is in the database."
	}
	return &of, next + " Before the service is started again, set --store (MTAGD_STORE) in its configuration to the address of --to", err
}

// verify fails when some data is damaged, unless that is accepted.
func (c *migrateCommand) verify(p *process, bar *progressBar) error {
	damaged := false
	_, err := verifyData(p, store.Verification{
		Found: func(f store.Finding) {
			damaged = true
			bar.end()
			fmt.Fprintf(p.stderr, "mtagd: %s: %s %s%s\n", f.Part, f.Where, f.Problem, eventsText(f))
		},
		Read: func(_ store.Part, done, total uint64) { bar.show("verify", done, total) },
	})
	if err == nil && damaged && !c.AcceptDamage {
		err = errDamaged
	}
	return err
}

// toDirectory moves a database into a data directory. No node may run. The results are those of toDatabase.
func (c *migrateCommand) toDirectory(p *process, bar *progressBar) (_ *migrate.Result, next string, err error) {
	dir, err := filepath.Abs(c.To)
	if err != nil {
		return nil, "", fmt.Errorf("--to: %w", err)
	}
	from, err := postgres.OpenDatabase(p.ctx, p.store, quietLog(p.stderr))
	if err != nil {
		return nil, "", fmt.Errorf("--store: %w", err)
	}
	defer from.Close()
	to := local.NameOf(dir)
	locked, err := from.PreventChanges(p.ctx, to)
	if err != nil {
		return nil, "", fmt.Errorf("--store: %w", err)
	}
	defer locked.Release()
	var result migrate.Result
	if err := local.Import(dir, quietLog(p.stderr), func(target migrate.Target) (err error) {
		result, err = migrate.Import(locked.Context(), from, target, migrate.Options{Log: quietLog(p.stderr), Progress: bar.count})
		return err
	}); err != nil {
		return nil, "", fillError(p.ctx, "import", dir, err)
	}
	return &result, fmt.Sprintf("everything is in %s. Start the service there, with --data %s and without --store (MTAGD_STORE)", to, c.To), locked.Moved(p.ctx)
}

// finish opens the database if a migration was cut off after the directory was marked as moved. next is "" when it was not.
func (c *migrateCommand) finish(p *process) (next string, err error) {
	moved, is, err := local.MovedTo(p.data)
	if err != nil || !is {
		return "", err
	}
	to, err := postgres.OpenDatabase(p.ctx, c.To, quietLog(p.stderr))
	if err != nil {
		return "", fmt.Errorf("--to: %w", err)
	}
	defer to.Close()
	here, err := to.Place(p.ctx)
	if err != nil {
		return "", fmt.Errorf("--to: %w", err)
	}
	if !moved.Is(here) {
		return "", fmt.Errorf("the data of %s moved to %s already, on %s, which is not %s", p.data, moved.Name, store.FormatTime(moved.At), here.Name)
	}
	return fmt.Sprintf("the data of %s moved to %s on %s. Start the service with --store", p.data, moved.Name, store.FormatTime(moved.At)), to.Finish(p.ctx)
}

// migrateClosed migrates a data directory that no server has open.
func migrateClosed(p *process, to string, bar *progressBar) (result migrate.Result, err error) {
	engine, err := local.Open(p.data, local.Options{Log: quietLog(p.stderr)})
	if err != nil {
		return result, openError(p.data, err)
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	return switchTo(p.ctx, engine, to, migrate.Options{Log: quietLog(p.stderr), Progress: bar.count})
}

// switchTo moves the data of an open engine to a database.
func switchTo(ctx context.Context, engine store.Engine, address string, opt migrate.Options) (migrate.Result, error) {
	to, err := postgres.OpenDatabase(ctx, address, opt.Log)
	if err != nil {
		return migrate.Result{}, fmt.Errorf("--to: %w", err)
	}
	defer to.Close()
	return migrate.Switch(ctx, local.MigrateFrom(engine), to, opt)
}

// count shows how many things are done in a phase.
func (b *progressBar) count(phase migrate.Phase, done uint64) { b.show(string(phase), done, 0) }
