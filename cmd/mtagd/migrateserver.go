package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"mtagd/cmd/mtagd/operator"
	"mtagd/store"
	"mtagd/store/migrate"
)

// migratePath is where the operator socket migrates the data directory.
const migratePath = "/migrate"

// migrationLogInterval is how often a migration logs the progress of a phase.
const migrationLogInterval = 30 * time.Second

// handleMigration lets the operator socket migrate the running server's data. After a successful migration it answers, and
// then calls moved. A migration is cancelled when its command ends or when ctx ends. wait waits for the migration to end,
// and prevents another one.
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
