// Package operator lets an operator manage partners, API keys, merchants, tags and domains, with a running server or without one.
//
// A command is a value: its fields are flags on the command line, and its JSON is the message that carries it to a running
// server over a unix socket. The server, or the command's own process when no server runs, applies the value to the control
// data. Every change is in the audit log, and also in the server's log. Read in this order:
//
//	client.go    runs a command: in the server if there is one, else on the opened control data
//	server.go    the server's end of the socket
//	merchant.go  the merchant commands
//	tag.go       the tag commands
//	partner.go   the partner commands
//	domain.go    the domain commands
//	audit.go     the audit log
//	key.go       the key commands
//	console.go   links to the web console
//	secret.go    the key of credentials
//	limit.go     the flags that set limits, and the reason for a change
//	command.go   what every command has
//	stream.go    the answer to a command that takes long
//	user.go      the system user who runs a command
//	socket.go    the socket's place in the data directory, and the protocol's statuses
package operator

import (
	"context"
	"io"
	"reflect"
	"time"

	"mtagd/store"
)

// Commands are all commands.
type Commands struct {
	Partner  PartnerCommands  `cmd:"" help:"Manage partners. Works with and without a running server."`
	Key      KeyCommands      `cmd:"" help:"Manage API keys. Works with and without a running server."`
	Console  ConsoleCommands  `cmd:"" help:"Make links that sign in to the web console, and end its sessions. Works with and without a running server."`
	Merchant MerchantCommands `cmd:"" help:"Show, suspend and limit merchants. Works with and without a running server."`
	Tag      TagCommands      `cmd:"" help:"Show and suspend tags. Works with and without a running server."`
	Domain   DomainCommands   `cmd:"" help:"List and release the domains of merchants. Works with and without a running server."`
	Secret   SecretCommands   `cmd:"" help:"Rotate the key that encrypts the credentials of destinations, in a running server."`
	Audit    AuditCommand     `cmd:"" help:"Show who changed what. Works with and without a running server."`
}

// Command is an operator command. If the values of its flags need a check, it has a method Validate, which the
// parser of the command line calls.
type Command interface {
	// apply runs the command and returns its result, which is printed as JSON.
	apply(ctx context.Context, control store.Control) (any, error)
}

// pathOf is the path of a command on the operator socket.
func pathOf(command reflect.Type) string { return "/" + command.Name() }

// Printer is a command that prints its result in another form than JSON.
type Printer interface {
	Print(w io.Writer, result []byte) error
}

// timestamp is a time in the form that the whole service prints.
type timestamp time.Time

func (t timestamp) MarshalText() ([]byte, error) {
	return []byte(store.FormatTime(time.Time(t))), nil
}

// optional converts a time that may be nil; nil is printed as null.
func optional(t *time.Time) *timestamp { return (*timestamp)(t) }

// unlessZero is optional for a time whose zero value means that there is none.
func unlessZero(t time.Time) *timestamp {
	if t.IsZero() {
		return nil
	}
	return optional(&t)
}
