// Package operator lets an operator manage partners, API keys, merchants, tags and domains, with a running server or
// without one.
//
// A command is a value: its fields are flags on the command line, and its JSON is the message that carries it to a running
// server over a unix socket. The server, or the command's own process when no server runs, applies the value to the control
// data. Every change is in the audit log, and also in the server's log. Read in this order:
//
//	client.go    runs a command: in the server if there is one, else on the opened control data
//	server.go    the server's end of the socket
//	socket.go    the socket's place, the protocol's statuses, the answer to a long command, and the user at the other end
//	merchant.go  the merchant commands
//	tag.go       the tag and domain commands
//	partner.go   the partner commands
//	audit.go     the audit log
//	access.go    API keys, links to the web console, and the key of credentials
//	command.go   what every command has, the flags that set limits, and the reason for a change
package operator

import (
	"context"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"

	"mtagd/store"
)

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

// Command is an operator command. Its method Validate, if there is one, checks the flags: the parser calls it.
type Command interface {
	// apply runs the command and returns its result, which is printed as JSON.
	apply(ctx context.Context, control store.Control) (any, error)
}

// pathOf is the path of a command on the operator socket.
func pathOf(command reflect.Type) string { return "/" + command.Name() }

// timestamp is a time in the form that the whole service prints. The zero time is printed as null.
type timestamp time.Time

func (t timestamp) MarshalJSON() ([]byte, error) {
	if time.Time(t).IsZero() {
		return []byte("null"), nil
	}
	return append(store.AppendTime([]byte{'"'}, time.Time(t)), '"'), nil
}

// views returns what is shown of each item: a list, never null.
func views[T, V any](items []T, view func(T) V) []V {
	all := make([]V, len(items))
	for i, item := range items {
		all[i] = view(item)
	}
	return all
}

// limitHelp is shown after the one line of help of the commands that set limits.
const limitHelp = "Each flag sets one limit, from the next request on: to a number, or a size such as 64MiB or 1.5GiB; off lifts it, " +
	"default goes back to the default. The command prints what is set (null: nothing) and the defaults."

// limitView is a limit: what an operator has set (null: nothing), and the default.
type limitView struct {
	Set     *store.Limit `json:"set"`
	Default any          `json:"default"`
}

// limit is one limit of a partner or merchant, with the flag that sets it.
type limit struct {
	name  string
	flag  setting
	value *store.Limit
	def   any
}

func setLimits(limits []limit) {
	for _, l := range limits {
		if l.flag.Given {
			*l.value = l.flag.Limit
		}
	}
}

func viewLimits(limits []limit) map[string]limitView {
	views := map[string]limitView{}
	for _, l := range limits {
		view := limitView{Default: l.def}
		if *l.value != 0 {
			view.Set = l.value
		}
		views[l.name] = view
	}
	return views
}

// setting is the value of a flag that sets a limit.
type setting struct {
	Given bool
	Limit store.Limit
}

// decode reads the flag's value: "off", "default", or what parse accepts.
func (s *setting) decode(ctx *kong.DecodeContext, parse func(text string) (store.Limit, error)) (err error) {
	var text string
	if err := ctx.Scan.PopValueInto("limit", &text); err != nil {
		return err
	}
	s.Given = true
	switch text {
	case "off":
		s.Limit = store.NoLimit
	case "default":
		s.Limit = 0
	default:
		s.Limit, err = parse(text)
	}
	return err
}

type count struct{ setting }

func (c *count) Decode(ctx *kong.DecodeContext) error { return c.decode(ctx, parseCount) }

func parseCount(text string) (store.Limit, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("must be a positive number, off or default, not %q", text)
	}
	return store.Limit(n), nil
}

type size struct{ setting }

func (s *size) Decode(ctx *kong.DecodeContext) error { return s.decode(ctx, parseSize) }

func parseSize(text string) (store.Limit, error) {
	n, err := ParseSize(text)
	if err != nil {
		err = fmt.Errorf("must be a size such as 64MiB or 1.5GiB, off or default, not %q", text)
	}
	return store.Limit(n), err
}

// ParseSize parses a size in bytes, such as 64MiB.
func ParseSize(text string) (bytes int64, err error) {
	n, err := humanize.ParseBytes(text)
	// A number without a unit is more likely a mistake than a number of bytes. Some write a comma for the decimal point.
	unit := strings.TrimLeft(text, "0123456789.")
	if err != nil || n == 0 || n > math.MaxInt64 || unit == "" || unit[0] == ',' {
		return 0, fmt.Errorf("must be a size such as 64MiB or 1.5GiB, not %q", text)
	}
	return int64(n), nil
}

// reason is why an operator makes a change, in one line.
type reason string

const maxReason = 500 // characters

// in returns a context whose changes are made for this reason.
func (r reason) in(ctx context.Context) context.Context { return store.WithReason(ctx, string(r)) }

func (r *reason) Decode(ctx *kong.DecodeContext) error {
	var text string
	if err := ctx.Scan.PopValueInto("text", &text); err != nil {
		return err
	}
	text = strings.TrimSpace(text)
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
	if utf8.RuneCountInString(text) > maxReason || strings.ContainsFunc(text, unprintable) {
		return fmt.Errorf("must be one line of at most %d printable characters", maxReason)
	}
	*r = reason(text)
	return nil
}
