package operator

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"

	"mtagd/store"
)

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

// count is a limit that is a number.
type count struct{ setting }

func (c *count) Decode(ctx *kong.DecodeContext) error { return c.decode(ctx, parseCount) }

func parseCount(text string) (store.Limit, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return 0, fmt.Errorf("must be a positive number, off or default, not %q", text)
	}
	return store.Limit(n), nil
}

// size is a limit in bytes.
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
	// A number without a unit is more likely a mistake than a number of bytes. A comma would separate thousands, but some
	// write it for the decimal point.
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
