package operator

import (
	"context"

	"mtagd/store"
)

// SecretCommands are the subcommands of "mtagd secret".
type SecretCommands struct {
	Rotate secretRotate `cmd:"" help:"Make a new key in the key file, and encrypt the secrets of all destinations by it. The old keys stay in the file: drop them when no backup needs them. Copy the file to the other nodes."`
}

type secretRotate struct{}

func (secretRotate) apply(ctx context.Context, control store.Control) (any, error) {
	running, is := control.(Running)
	if !is {
		return nil, store.Conflict("", "no server runs on this data directory: start it, and run the command again")
	}
	if running.RotateKey == nil {
		return nil, store.Conflict("", "events are not delivered: set --secret-key-file")
	}
	n, err := running.RotateKey(ctx)
	return struct {
		Destinations int `json:"destinations"`
	}{n}, err
}
