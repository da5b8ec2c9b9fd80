package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"mtagd/cmd/mtagd/operator"
	"mtagd/store"
	"mtagd/store/local"
	"mtagd/store/migrate"
	"mtagd/store/postgres"
	"mtagd/store/postgres/schema"
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

// toDatabase moves a data directory into a database, in the running server if there is one. next says what is to be done
// then. The result is nil when an earlier run has moved the data.
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
	next = fmt.Sprintf("everything is in %s. Start the service there, with --data %s and without --store (MTAGD_STORE)", to, c.To)
	locked, err := from.PreventChanges(p.ctx, to)
	if moved, is := errors.AsType[*postgres.Moved](err); is { // an earlier run has ended, or was cut off at its very end
		if finished, err := local.FinishImport(dir, moved.To); finished || err != nil {
			return nil, next, err
		}
	}
	if err != nil {
		return nil, "", fmt.Errorf("--store: %w", err)
	}
	defer locked.Release()
	var result migrate.Result
	var markErr error
	if err := local.Import(dir, to, quietLog(p.stderr), func(target migrate.Target) (err error) {
		result, err = migrate.Import(locked.Context(), from, target, migrate.Options{Log: quietLog(p.stderr), Progress: bar.count})
		return err
	}, func() error {
		markErr = locked.Moved(p.ctx)
		return markErr
	}); err != nil {
		if markErr != nil {
			return nil, "", markErr
		}
		return nil, "", fillError(p.ctx, "import", dir, err)
	}
	return &result, next, nil
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
	if moved.ID != here.ID {
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

// migratePath is where the operator socket migrates the data directory.
const migratePath = "/migrate"

// migrationLogInterval is how often a migration logs the progress of a phase.
const migrationLogInterval = 30 * time.Second

// handleMigration lets the operator socket migrate the running server's data. After a successful migration it answers, and
// then calls moved. The end of its command or of ctx cancels a migration. wait waits for its end, and prevents another one.
func handleMigration(ctx context.Context, mux *http.ServeMux, engine store.Engine, log *slog.Logger, moved func(to string)) (wait func()) {
	stopping := ctx
	busy := make(chan struct{}, 1)
	mux.HandleFunc("POST "+migratePath, func(w http.ResponseWriter, r *http.Request) {
		var asked migration
		if !operator.Decode(w, r, &asked) {
			return
		}
		select {
		case busy <- struct{}{}:
			defer func() { <-busy }()
		default:
			http.Error(w, "a migration is under way already", http.StatusConflict)
			return
		}
		succeeded := false
		operator.Answer(w, r, func(ctx context.Context, say func(operator.Message)) (any, error) {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(stopping, cancel)()
			var last migrate.Phase
			var logged time.Time
			result, err := switchTo(ctx, engine, asked.To, migrate.Options{Log: log, Progress: func(phase migrate.Phase, done uint64) {
				if phase != last || time.Since(logged) >= migrationLogInterval {
					log.Info("migration", "phase", phase, "done", done)
					last, logged = phase, time.Now()
				}
				say(operator.Message{Step: string(phase), Done: done})
			}})
			if err != nil {
				if _, moved := errors.AsType[*migrate.Unfinished](err); !moved {
					err = fmt.Errorf("the service goes on as before: %w", err)
				}
				log.Error("the migration has failed", "error", err)
				return nil, &store.Error{Kind: store.KindInternal, Message: oneLine(err)} // the operator sees the whole text
			}
			log.Info("all data has moved to the database: this process ends the service on the directory, and goes on with the database", "events", result.Events, "seconds_refused", result.Refused)
			succeeded = true
			return result, nil
		})
		if succeeded {
			moved(asked.To) // while busy: no second migration begins
		}
	})
	return func() { busy <- struct{}{} } // never released: no other migration begins
}

type storeCommands struct {
	Distribute distributeCommand `cmd:"" help:"Spread the tables of the --store database over the workers of a Citus cluster. Nodes may run meanwhile."`
}

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
