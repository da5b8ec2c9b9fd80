package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"

	"mtagd/store"
)

// AuditCommand is "mtagd audit": it prints who changed what, the newest change last.
type AuditCommand struct {
	Partner store.PartnerID `placeholder:"PARTNER_ID" help:"Only what is about this partner, its keys, merchants and tags."`
	Since   moment          `placeholder:"TIME" help:"Only changes since this time: a time such as 2026-11-20T08:30:00Z, a day in UTC such as 2026-11-20, or how long ago, such as 24h or 7d."`
	Before  store.AuditID   `placeholder:"ID" help:"Only changes before the one with this id (in the JSON form), to go back further."`
	Limit   int             `default:"1000" placeholder:"N" help:"At most so many changes, the newest ones (default ${default})."`
	JSON    bool            `name:"json" help:"Print one JSON object a line instead of a table."`
}

// maxAuditLimit bounds the memory of an answer.
const maxAuditLimit = 100_000

func (c AuditCommand) Validate() error {
	if c.Limit < 1 || c.Limit > maxAuditLimit {
		return store.Invalid("--limit", "must be from 1 to %d", maxAuditLimit)
	}
	return nil
}

func (c AuditCommand) apply(ctx context.Context, control store.Control) (any, error) {
	entries, err := control.Audit(ctx, store.AuditQuery{Partner: c.Partner, Since: c.Since.Time, Before: c.Before, Limit: c.Limit})
	slices.Reverse(entries)
	return entries, err
}

func (c AuditCommand) Print(w io.Writer, result []byte) error {
	var entries []store.AuditEntry
	if err := json.Unmarshal(result, &entries); err != nil {
		return err
	}
	return PrintList(w, c.JSON, entries, "TIME\tACTOR\tACTION\tPARTNER\tSUBJECT\tDETAIL", func(e store.AuditEntry) []string {
		// What was changed is the partner itself where no other id is given.
		subject := cmp.Or(string(e.Tag), string(e.Key), string(e.Merchant), "-")
		return []string{store.FormatTime(e.At), actorText(e.Actor), string(e.Action), string(e.Partner), subject, detailText(e)}
	})
}

// PrintList prints one JSON object a line, or else a table. The columns of its head are separated by tabs.
func PrintList[T any](w io.Writer, asJSON bool, items []T, head string, row func(T) []string) error {
	lines, table := json.NewEncoder(w), tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if !asJSON {
		fmt.Fprintln(table, head)
	}
	for _, item := range items {
		if !asJSON {
			fmt.Fprintln(table, strings.Join(row(item), "\t"))
		} else if err := lines.Encode(item); err != nil {
			return err
		}
	}
	return table.Flush()
}

func actorText(a store.Actor) string {
	return strings.TrimSpace(string(a.Kind) + " " + a.Name)
}

func detailText(e store.AuditEntry) string {
	if e.Reason == "" {
		return e.Detail
	}
	return strings.TrimPrefix(e.Detail+", reason: "+e.Reason, ", ")
}

// moment is a time on the command line.
type moment struct{ time.Time }

func (m *moment) Decode(ctx *kong.DecodeContext) (err error) {
	var text string
	if err := ctx.Scan.PopValueInto("time", &text); err != nil {
		return err
	}
	m.Time, err = parseMoment(text, time.Now())
	return err
}

func parseMoment(text string, now time.Time) (time.Time, error) {
	if t, ok := store.ParseTime(text); ok {
		return t, nil
	}
	if day, err := time.Parse(time.DateOnly, text); err == nil {
		return day, nil
	}
	if ago, err := ParseLifetime(text); err == nil {
		return now.Add(-ago), nil
	}
	return time.Time{}, fmt.Errorf("must be a time such as 2026-11-20T08:30:00Z, a day such as 2026-11-20, or how long ago, such as 24h or 7d, not %q", text)
}
