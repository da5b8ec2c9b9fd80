package partnerapi

import (
	"context"
	"slices"

	"github.com/goccy/go-json/v2"
	"github.com/valyala/fasthttp"

	"mtagd/partnerapi/export"
	"mtagd/store"
)

func (a *api) eventResources() map[string]resource {
	filters := []string{"merchantId", "tagId", "events", "startDate", "endDate", "isBot"}
	with := func(more ...string) []string { return slices.Concat(filters, more) }
	feed := op("read_feed", a.readFeed, "merchantId", "isBot", "after", "limit", "wait")
	feed.waits = true
	return map[string]resource{
		"/v1/partners/events":         {"GET": op("list_events", a.listEvents, with("page", "limit", "sortBy", "sortOrder")...)},
		"/v1/partners/events/feed":    {"GET": feed},
		"/v1/partners/events/export":  {"GET": op("export_events", a.exportEvents, with("format")...)},
		"/v1/partners/events/summary": {"GET": op("summarize_events", a.summarizeEvents, with("bucket", "timezone", "by")...)},
	}
}

// listEvents answers with one page of a merchant's events (spec, List events). When tagId is not a tag of the
// merchant, the page is empty.
func (a *api) listEvents(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	p := params{args: r.QueryArgs()}
	merchantID := p.required("merchantId")
	w := p.window(eventsPerPage)
	q := store.Query{
		Asc:    p.word("sortOrder", "desc", "asc") == "asc",
		SortBy: store.SortKey(p.word("sortBy", string(store.ByTime), string(store.ByName))),
		Names:  p.list("events"),
		Tag:    store.TagID(p.id("tagId")),
		Bot:    p.flag("isBot"),
		Offset: w.offset(),
		Limit:  w.limit,
	}
	q.From, q.To = p.timeRange("startDate", "endDate")
	if p.err != nil {
		return p.err
	}
	m, has, err := a.merchantWithTag(ctx, partner, merchantID, q.Tag)
	if err != nil {
		return err
	}
	q.Merchant = m.ID
	var page store.Page
	if has {
		memory, err := a.listings.reserve(ctx, partner.ID, int64(w.limit)*2*store.MaxEventBytes) // the events, and the answer that is built from them
		if err != nil {
			return err
		}
		defer a.releaseWhenAnswered(r, memory)()
		if page, err = a.Engine.Events(ctx, q); err != nil {
			return err
		}
	}
	return replyEvents(r, page, w)
}

// releaseWhenAnswered releases a listing's memory when its answer is written. It returns a function for the end of the
// handler.
func (a *api) releaseWhenAnswered(r *fasthttp.RequestCtx, m *reservation) (handlerDone func()) {
	if a.WhenAnswered == nil {
		return m.release
	}
	a.WhenAnswered(r, m.release)
	return func() { m.keep(len(r.Response.Body())) }
}

// besidesRaw is about how many bytes of JSON an event has without its raw_data.
const besidesRaw = 256

// replyEvents answers with a page of events. It writes the JSON itself, to copy raw_data as it is stored. A page can
// have 100 × 64 KiB of that, and json.Marshal would parse and write it again.
func replyEvents(r *fasthttp.RequestCtx, page store.Page, w window) error {
	size := besidesRaw
	for _, e := range page.Events {
		size += besidesRaw + len(e.Raw)
	}
	body := append(make([]byte, 0, size), `{"events":[`...)
	for i, e := range page.Events {
		if i > 0 {
			body = append(body, ',')
		}
		body = export.AppendMembers(append(body, '{'), &store.Received{Event: e}, export.Listing)
		body = append(append(body, e.Raw...), '}')
	}
	pages, err := json.Marshal(struct {
		pagination
		Total int `json:"total"` // the same as totalItems; the spec has both names
	}{w.of(page.Total), page.Total})
	send(r, fasthttp.StatusOK, append(append(append(body, `],"pagination":`...), pages...), '}'))
	return err
}
