package console

import (
	"context"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/partnerapi"
	"mtagd/store"
)

const (
	auditEntries    = 100 // unless the request has a limit
	maxAuditEntries = 1000
	auditTimeout    = 10 * time.Second // all of the log may have to be read for one partner
)

// entryJSON is the JSON of an entry of the audit log.
type entryJSON struct {
	store.AuditEntry
	PartnerName string `json:"partnerName,omitempty"`
}

// audit answers with entries of the audit log, newest first. before is the id of the last entry that the page has.
func (c *Console) audit(r *fasthttp.RequestCtx) error {
	q := store.AuditQuery{Limit: auditEntries, Partner: store.PartnerID(r.QueryArgs().Peek("partnerId"))}
	if r.QueryArgs().Has("limit") {
		n, err := strconv.Atoi(string(r.QueryArgs().Peek("limit")))
		if err != nil || n < 1 || n > maxAuditEntries {
			return store.Invalid("limit", "must be an integer from 1 to %d", maxAuditEntries)
		}
		q.Limit = n
	}
	if r.QueryArgs().Has("before") {
		before, err := strconv.ParseUint(string(r.QueryArgs().Peek("before")), 10, 64)
		if err != nil || before == 0 {
			return store.Invalid("before", "must be the id of an entry")
		}
		q.Before = store.AuditID(before)
	}
	ctx, cancel := context.WithTimeout(context.Background(), auditTimeout)
	defer cancel()
	entries, err := c.Engine.Audit(ctx, q)
	if err != nil {
		return err
	}
	view := struct {
		Entries []entryJSON `json:"entries"`
	}{[]entryJSON{}}
	for _, e := range entries {
		partner, _ := c.Engine.Directory().Partner(e.Partner)
		view.Entries = append(view.Entries, entryJSON{e, partner.Name})
	}
	return partnerapi.Reply(r, fasthttp.StatusOK, view)
}
