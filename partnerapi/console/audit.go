package console

import (
	"context"
	"strconv"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

const (
	auditEntries    = 100 // unless the request has a limit
	maxAuditEntries = 1000
	auditTimeout    = 10 * time.Second // all of the log may have to be read for one partner
)

// entryJSON is the JSON of an entry of the audit log.
type entryJSON struct {
	ID          store.AuditID     `json:"id"`
	At          string            `json:"at"`
	Actor       store.Actor       `json:"actor"`
	Action      store.AuditAction `json:"action"`
	Partner     store.PartnerID   `json:"partnerId,omitempty"`
	PartnerName string            `json:"partnerName,omitempty"`
	Merchant    store.MerchantID  `json:"merchantId,omitempty"`
	Tag         store.TagID       `json:"tagId,omitempty"`
	Key         store.KeyID       `json:"keyId,omitempty"`
	Detail      string            `json:"detail,omitempty"`
	Reason      string            `json:"reason,omitempty"`
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
		view.Entries = append(view.Entries, entryJSON{e.ID, store.FormatTime(e.At), e.Actor, e.Action, e.Partner, partner.Name,
			e.Merchant, e.Tag, e.Key, e.Detail, e.Reason})
	}
	return reply(r, view)
}
