package operator

import (
	"context"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"mtagd/store"
)

// reason is why an operator makes a change, in one line.
type reason string

const maxReason = 500 // characters

// in returns a context whose changes are made for this reason.
func (r reason) in(ctx context.Context) context.Context { return store.WithReason(ctx, string(r)) }

// Decode reads the flag's value.
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

func suspendedOrResumed(suspended bool) string {
	if suspended {
		return "suspended"
	}
	return "resumed"
}
