package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"mtagd/cmd/mtagd/operator"
	"mtagd/partnerapi/delivery"
	"mtagd/store"
)

// secretCommands are the subcommands of "mtagd secret".
type secretCommands struct {
	Rotate secretRotate `cmd:"" help:"Make a new key in the key file, and encrypt the secrets of all destinations by it. The old keys stay in the file: drop them when no backup needs them. Copy the file to the other nodes."`
}

// secretRotate is "mtagd secret rotate".
type secretRotate struct{}

const rotatePath = "/secret/rotate"

// Run asks the running server to rotate the key.
func (secretRotate) Run(p *process) error {
	answer, err := operator.Request(p.ctx, p.data, http.MethodPost, rotatePath, nil)
	if operator.IsNoServer(err) {
		return errors.New("no server runs on this data directory: start it, and run the command again")
	}
	if err != nil {
		return err
	}
	_, err = io.Copy(p.stdout, answer.Body)
	return errors.Join(err, answer.Body.Close())
}

// handleRotation lets the operator socket rotate the key.
func handleRotation(mux *http.ServeMux, d *delivery.Service) {
	mux.HandleFunc("POST "+rotatePath, func(w http.ResponseWriter, r *http.Request) {
		if d == nil {
			http.Error(w, "events are not delivered: set --secret-key-file", http.StatusConflict)
			return
		}
		ctx := store.WithActor(r.Context(), store.Actor{Kind: store.ByOperator, Name: r.RemoteAddr})
		n, err := d.RotateKey(ctx)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = fmt.Fprintf(w, "{\"destinations\": %d}\n", n) // it fails if the command has gone
	})
}
