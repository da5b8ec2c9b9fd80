package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"mtagd/store"
	"mtagd/store/migrate"
)

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
		result, err := switchTo(ctx, engine, asked.To, migrate.Options{Log: log, Progress: s.show})
		if err != nil {
			if _, moved := errors.AsType[*migrate.Unfinished](err); !moved {
				err = fmt.Errorf("the service goes on as before: %w", err)
			}
			log.Error("the migration has failed", "error", err)
			s.send(migrationMessage{Failure: oneLine(err)})
			return
		}
		log.Info("all data has moved to the database: this process ends the service on the directory, and goes on with the database", "events", result.Events, "seconds_refused", result.Refused)
		s.send(migrationMessage{Result: &result})
		moved(asked.To) // while busy: no second migration begins
	})
	return mux, func() { busy <- struct{}{} } // for good
}

// migrationStream sends the messages of a migration to the command, and logs its phases.
type migrationStream struct {
	w       http.ResponseWriter
	control *http.ResponseController
	log     *slog.Logger
	phase   migrate.Phase
	sent    time.Time
	logged  time.Time
}

// How often a migration says how far it is.
const (
	migrationSendInterval = 200 * time.Millisecond
	migrationLogInterval  = 30 * time.Second
)

func (s *migrationStream) show(phase migrate.Phase, done uint64) {
	switch {
	case s.phase != phase || time.Since(s.logged) >= migrationLogInterval:
		s.log.Info("migration", "phase", phase, "done", done)
		s.phase, s.logged = phase, time.Now()
	case time.Since(s.sent) < migrationSendInterval:
		return
	}
	s.send(migrationMessage{Phase: phase, Done: done})
}

// send sends a message. It fails when the command has ended; the migration ends then too.
func (s *migrationStream) send(m migrationMessage) {
	s.sent = time.Now()
	_ = s.control.SetWriteDeadline(s.sent.Add(streamTimeout))
	_ = json.NewEncoder(s.w).Encode(m)
	_ = s.control.Flush()
}
