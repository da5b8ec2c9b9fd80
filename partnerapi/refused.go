package partnerapi

import (
	"context"
	"strings"
	"time"

	"github.com/goccy/go-json/jsontext"
	"github.com/valyala/fasthttp"

	"mtagd/edge/check"
	"mtagd/edge/refused"
	"mtagd/edge/tag"
	"mtagd/store"
)

const (
	entriesPerList = 100 // unless the request has a limit
	entryMemory    = 8 << 10
)

func (a *api) debugResources() map[string]resource {
	return map[string]resource{
		"/v1/partners/debug/refused": {"GET": op("list_refused", a.listRefused, "merchantId", "tagId", "limit")},
		"/v1/partners/debug/mark":    {"POST": op(tryOperation, a.tryEvents, "tagId", "withSecret")},
	}
}

// refusedJSON is the JSON of events that were refused for the same reason, or accepted although they are odd.
type refusedJSON struct {
	At         time.Time        `json:"at"`
	LastAt     time.Time        `json:"lastAt"`
	Count      int              `json:"count"`
	MerchantID store.MerchantID `json:"merchantId"`
	TagID      store.TagID      `json:"tagId"`
	Status     int              `json:"status"`
	Code       string           `json:"code"`
	Message    string           `json:"message"`
	Reason     string           `json:"reason"`
	Path       string           `json:"path"`
	Event      *string          `json:"event"`
	Suggestion *string          `json:"suggestion"`
	Origin     *string          `json:"origin"`
	Sample     jsontext.Value   `json:"sample"` // an object, or null
}

// listRefused answers with the refused and odd events of a merchant. When tagId is not a tag of the merchant, the list is
// empty.
func (a *api) listRefused(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	p := params{args: r.QueryArgs()}
	merchantID := p.required("merchantId")
	tagID := p.id("tagId")
	limit := p.number("limit", entriesPerList, refused.MaxEntries)
	if p.err != nil {
		return p.err
	}
	m, err := a.merchant(ctx, partner, merchantID)
	if err != nil {
		return err
	}
	memory, err := a.listings.reserve(ctx, partner.ID, int64(limit)*entryMemory)
	if err != nil {
		return err
	}
	defer a.releaseWhenAnswered(r, memory)()
	listing := a.Refused.List(m.ID, store.TagID(tagID), limit)
	return Reply(r, fasthttp.StatusOK, struct {
		Refused []refusedJSON `json:"refused"`
		Since   time.Time     `json:"since"`
		Dropped int           `json:"dropped"`
	}{each(listing.Entries, func(e refused.Entry) refusedJSON {
		return refusedJSON{
			At: e.First, LastAt: e.Last, Count: e.Count, MerchantID: m.ID, TagID: e.Tag,
			Status: e.Status, Code: e.Code, Message: e.Message, Reason: e.Reason, Path: e.Path,
			Event: unlessEmpty(e.Name), Suggestion: unlessEmpty(e.Suggestion), Origin: unlessEmpty(e.Origin), Sample: e.Sample,
		}
	}), listing.Since, listing.Dropped})
}

// unlessEmpty returns a text for JSON; "" becomes null.
func unlessEmpty(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// tryOperation is the name of the operation that tries events. Its method is POST, but it changes nothing.
const tryOperation = "try_events"

// eventFindingJSON is the JSON of something that is wrong in an event.
type eventFindingJSON struct {
	Level      check.Level `json:"level"`
	Code       string      `json:"code"`
	Path       string      `json:"path"`
	Message    string      `json:"message"`
	Suggestion *string     `json:"suggestion"`
}

// tryEvents answers with what POST /mark would answer to the same body, and with what is wrong in the events. It records
// nothing.
func (a *api) tryEvents(ctx context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	p := params{args: r.QueryArgs()}
	tagID := p.required("tagId")
	withSecret := p.word("withSecret", "false", "true") == "true"
	if p.err != nil {
		return p.err
	}
	t, err := a.tag(ctx, partner, tagID)
	if err != nil {
		return err
	}
	release, err := a.trials.acquire(ctx, partner.ID)
	if err != nil {
		return err
	}
	defer release()
	trial, err := tag.Try(ctx, r, a.Engine, t, withSecret, a.Now())
	if err != nil {
		return err
	}
	return Reply(r, fasthttp.StatusOK, struct {
		Status   int                `json:"status"`
		Answer   jsontext.Value     `json:"answer"`
		Findings []eventFindingJSON `json:"findings"`
	}{trial.Status, trial.Answer, each(trial.Findings, func(f check.Finding) eventFindingJSON {
		return eventFindingJSON{f.Level, f.Code, f.Path, told(f), unlessEmpty(f.Suggestion)}
	})})
}

// told returns the message of a finding with the value that it is about: is "25", a string; reports need a number.
func told(f check.Finding) string {
	if rest, ok := strings.CutPrefix(f.Message, "is "); ok && f.Value != "" {
		return "is " + f.Value + ", " + rest
	}
	return f.Message
}
