package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"mtagd/cmd/mtagd/operator"
	"mtagd/store"
	"mtagd/store/local"
	"mtagd/store/move"
	"mtagd/store/postgres"
)

// migrateCommand is "mtagd migrate --to URL".
type migrateCommand struct {
	To           string `required:"" placeholder:"URL" help:"The new database, such as postgres://mtagd@db1,db2/mtagd. It must be empty, or have a part of the same data from a migration that was cut off. A password in it is a secret: set it in the environment."`
	AcceptDamage bool   `help:"Go on although some data is damaged. What cannot be read is left out."`
}

// Help is shown after the command's one line of help.
func (*migrateCommand) Help() string {
	return "A running server goes on serving. At the end it answers 503, for about a second per hundred thousand links and remembered event_ids, and then goes on with the database. " +
		"All data is compared on both sides before that. A migration that was cut off is continued by the same command. " +
		"When it has ended with 0, set --store in the configuration of the service."
}

// migration is what a running server is asked to do.
type migration struct {
	To           string
	AcceptDamage bool
}

// migrationMessage is a line of its answer. The last one has Result or Failure.
type migrationMessage struct {
	Phase   move.Phase     `json:"phase,omitempty"`
	Events  uint64         `json:"events,omitempty"`
	Result  *move.Result   `json:"result,omitempty"`
	Frozen  time.Duration  `json:"frozen,omitempty"`
	Finding *store.Finding `json:"finding,omitempty"`
	Failure string         `json:"failure,omitempty"`
}

// errDamaged is the error of a migration that was not begun.
var errDamaged = errors.New("some data is damaged, and nothing was copied. Restore it from a backup, or leave it out with --accept-damage")

// Run migrates, in the running server if there is one.
func (c *migrateCommand) Run(p *process) error {
	if err := checkStore(c.To); err != nil {
		return &usageError{where: p.origin.of("to"), err: err}
	}
	if p.store != "" {
		return &usageError{where: p.origin.of("store"), err: errors.New("must not be set: --data names what is migrated, and --to the database")}
	}
	if _, err := checkData(p.data, false); err != nil {
		return fmt.Errorf("data directory %s %w", p.data, err)
	}
	if done, err := c.finish(p); done || err != nil {
		return err
	}
	asked := migration{c.To, c.AcceptDamage}
	show := &migrationProgress{w: p.stderr, bar: newProgressBar(p.stderr, "migrate")}
	result, err := migrateServer(p.ctx, p.data, asked, show)
	running := !operator.IsNoServer(err)
	if !running {
		result, err = migrateClosed(p, asked, show)
	}
	show.bar.end()
	if err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if running {
		fmt.Fprintln(p.stderr, "mtagd: the server goes on with the database")
	}
	return c.done(p, result)
}

// done prints the result, and what is to be done.
func (c *migrateCommand) done(p *process, result move.Result) error {
	fmt.Fprintln(p.stderr, "mtagd: everything is in the database. Before the service is started again, set --store (MTAGD_STORE) in its configuration to the address of --to")
	return printJSON(p.stdout, struct {
		move.Result
		Refused float64 `json:"secondsRefused"`
	}{result, result.Frozen.Seconds()})
}

// finish opens the database if a migration was cut off after the directory was marked as moved. done reports whether it was.
func (c *migrateCommand) finish(p *process) (done bool, err error) {
	moved, is, err := local.MovedTo(p.data)
	if err != nil || !is {
		return false, err
	}
	to, err := postgres.OpenDatabase(p.ctx, c.To, quietLog(p.stderr))
	if err != nil {
		return false, fmt.Errorf("--to: %w", err)
	}
	defer to.Close()
	if to.Name() != moved.To {
		return false, fmt.Errorf("the data of %s moved to %s already, on %s", p.data, moved.To, store.FormatTime(moved.At))
	}
	if err := to.Finish(p.ctx); err != nil {
		return false, err
	}
	fmt.Fprintf(p.stderr, "mtagd: the data of %s moved to %s on %s. Start the service with --store\n", p.data, moved.To, store.FormatTime(moved.At))
	return true, nil
}

// migrateClosed migrates a data directory that no server has open.
func migrateClosed(p *process, asked migration, show *migrationProgress) (result move.Result, err error) {
	engine, err := local.Open(p.data, local.Options{Log: quietLog(p.stderr)})
	if err != nil {
		return result, openError(p.data, err)
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	return migrate(p.ctx, engine, asked, quietLog(p.stderr), show.show)
}

// migrate moves the data of an open engine to a database. It passes on what it does.
func migrate(ctx context.Context, engine store.Engine, asked migration, log *slog.Logger, show func(migrationMessage)) (move.Result, error) {
	to, err := postgres.OpenDatabase(ctx, asked.To, log)
	if err != nil {
		return move.Result{}, fmt.Errorf("--to: %w", err)
	}
	defer to.Close()
	damaged := false
	if _, err := engine.Verify(ctx, store.Verification{
		Found: func(f store.Finding) {
			damaged = true
			show(migrationMessage{Finding: &f})
		},
		Read: func(_ store.Part, done, _ uint64) { show(migrationMessage{Phase: verifying, Events: done}) },
	}); err != nil {
		return move.Result{}, err
	}
	if damaged && !asked.AcceptDamage {
		return move.Result{}, errDamaged
	}
	return move.Run(ctx, local.MoveFrom(engine), to, move.Options{
		Log: log, Progress: func(phase move.Phase, events uint64) { show(migrationMessage{Phase: phase, Events: events}) },
	})
}

// verifying is the phase before those of package move.
const verifying move.Phase = "verify"

// migrationProgress shows on stderr how far a migration is.
type migrationProgress struct {
	w   io.Writer
	bar *progressBar
}

func (s *migrationProgress) show(m migrationMessage) {
	if f := m.Finding; f != nil {
		s.bar.end()
		fmt.Fprintf(s.w, "mtagd: %s: %s %s%s\n", f.Part, f.Where, f.Problem, eventsText(*f))
		return
	}
	s.bar.count(string(m.Phase), m.Events)
}

// count shows how many things are done, of an unknown number.
func (b *progressBar) count(step string, done uint64) {
	if b.w == nil || time.Since(b.shown) < 100*time.Millisecond {
		return
	}
	b.shown = time.Now()
	fmt.Fprintf(b.w, "\r\x1b[K%s %-8s %s", b.title, step, humanize.Comma(int64(done)))
}

// migratePath is where the operator socket migrates the data directory.
const migratePath = "/migrate"

// withMigrate adds migrations of a running server to the handler of the operator socket. It calls moved at the end of one that has
// succeeded, after it has answered. A migration ends with the command that has asked for it, or with ctx; wait waits for that.
func withMigrate(ctx context.Context, engine store.Engine, log *slog.Logger, moved func(to string), operators http.Handler) (handler http.Handler, wait func()) {
	busy := make(chan struct{}, 1)
	mux := http.NewServeMux()
	mux.Handle("/", operators)
	mux.HandleFunc("POST "+migratePath, func(w http.ResponseWriter, r *http.Request) {
		var asked migration
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 64<<10)).Decode(&asked); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		select {
		case busy <- struct{}{}:
			defer func() { <-busy }()
		default:
			http.Error(w, "a migration is under way already", http.StatusConflict)
			return
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(r.Context(), cancel)()
		s := migrationStream{w: w, control: http.NewResponseController(w), log: log}
		result, err := migrate(ctx, engine, asked, log, s.show)
		if err != nil {
			if _, moved := errors.AsType[*move.Unfinished](err); !moved {
				err = fmt.Errorf("the service goes on as before: %w", err)
			}
			log.Error("the migration has failed", "error", err)
			s.send(migrationMessage{Failure: oneLine(err)})
			return
		}
		log.Info("all data has moved to the database: the service goes on with it", "events", result.Events, "refused_for", result.Frozen)
		s.send(migrationMessage{Result: &result, Frozen: result.Frozen})
		moved(asked.To) // while busy: no second migration begins
	})
	return mux, func() { busy <- struct{}{} } // for good
}

// migrationStream sends the messages of a migration to the command, and logs its phases.
type migrationStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	log     *slog.Logger
	phase   move.Phase
	sent    time.Time
	logged  time.Time
}

// How often a migration says how far it is.
const (
	migrationSendInterval = 200 * time.Millisecond
	migrationLogInterval  = 30 * time.Second
)

func (s *migrationStream) show(m migrationMessage) {
	if f := m.Finding; f != nil {
		s.log.Error("damage was found", "part", f.Part, "where", f.Where, "problem", f.Problem, "events", f.Events)
	} else if s.phase != m.Phase || time.Since(s.logged) >= migrationLogInterval {
		s.log.Info("migration", "phase", m.Phase, "done", m.Events)
		s.phase, s.logged = m.Phase, time.Now()
	} else if time.Since(s.sent) < migrationSendInterval {
		return
	}
	s.send(m)
}

// send sends a message. It fails when the command has ended; the migration ends then too.
func (s *migrationStream) send(m migrationMessage) {
	s.sent = time.Now()
	_ = s.control.SetWriteDeadline(s.sent.Add(streamTimeout))
	_ = json.NewEncoder(s.w).Encode(m)
	_ = s.control.Flush()
}

// migrateServer has the running server migrate its data. The error is one of operator.IsNoServer when there is none.
func migrateServer(ctx context.Context, data string, asked migration, show *migrationProgress) (result move.Result, err error) {
	message, err := json.Marshal(asked)
	if err != nil {
		return result, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://mtagd"+migratePath, bytes.NewReader(message))
	if err != nil {
		return result, err
	}
	response, err := operator.HTTPClient(data).Do(request)
	if err != nil {
		return result, fmt.Errorf("operator socket: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return result, errors.Join(fmt.Errorf("the running server answered %s %s", response.Status, strings.TrimSpace(string(text))), err)
	}
	for messages := json.NewDecoder(response.Body); ; {
		var m migrationMessage
		if err := messages.Decode(&m); err != nil {
			return result, fmt.Errorf("the server has stopped before the end: run the same command again: %w", err)
		}
		switch {
		case m.Failure != "":
			return result, errors.New(m.Failure)
		case m.Result != nil:
			m.Result.Frozen = m.Frozen
			return *m.Result, nil
		default:
			show.show(m)
		}
	}
}
