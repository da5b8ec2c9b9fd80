package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"mtagd/cmd/mtagd/operator"
	"mtagd/store/local"
	"mtagd/store/local/backup"
)

// backupPath is where the operator socket streams the data directory.
const backupPath = "/backup"

// handleBackup lets the operator socket stream a backup of the data directory.
func handleBackup(mux *http.ServeMux, src *local.Source) {
	mux.HandleFunc("GET "+backupPath, func(w http.ResponseWriter, r *http.Request) {
		id, err := src.ID(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = w.Write([]byte(id)) // this fails if the client has gone
	})
	mux.HandleFunc("POST "+backupPath, func(w http.ResponseWriter, r *http.Request) {
		var request backup.Request
		if !operator.Decode(w, r, &request) {
			return
		}
		request.Small = false // what the last commits have written belongs to the schedule
		// An error is in the stream. It cannot be written when the client has gone.
		_ = src.Stream(r.Context(), request, deadlineWriter{w, http.NewResponseController(w)})
	})
}

// deadlineWriter gives up on a client that does not read.
type deadlineWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (w deadlineWriter) Write(b []byte) (int, error) {
	if err := w.control.SetWriteDeadline(time.Now().Add(operator.StreamTimeout)); err != nil {
		return 0, err
	}
	return w.ResponseWriter.Write(b)
}

// serverSource is the data directory of a running server, which streams it through its operator socket.
type serverSource struct{ data string }

func (s serverSource) Close() error { return nil }

// ID implements backup.Source.
func (s serverSource) ID(ctx context.Context) (id string, err error) {
	answer, err := operator.Request(ctx, s.data, http.MethodGet, backupPath, nil)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
	return string(text), errors.Join(err, answer.Body.Close())
}

// Stream implements backup.Source.
func (s serverSource) Stream(ctx context.Context, r backup.Request, w io.Writer) error {
	answer, err := operator.Request(ctx, s.data, http.MethodPost, backupPath, r)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, answer.Body)
	return errors.Join(err, answer.Body.Close())
}
