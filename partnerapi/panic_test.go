package partnerapi

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// panicking is an engine whose calls panic, except those that real has.
type panicking struct {
	store.Engine // nil
	real         store.Engine
	feeds        bool // calls panic only after requests have found their merchant and the end of the feed
}

func (e *panicking) Directory() *store.Directory { return e.real.Directory() }

func (e *panicking) Merchant(ctx context.Context, id store.MerchantID) (store.Merchant, error) {
	if !e.feeds {
		panic("Merchant")
	}
	return e.real.Merchant(ctx, id)
}

func (e *panicking) Tag(ctx context.Context, id store.TagID) (store.Tag, error) {
	if !e.feeds {
		panic("Tag")
	}
	return e.real.Tag(ctx, id)
}

func (e *panicking) Latest(ctx context.Context) (store.Cursor, error) {
	if !e.feeds {
		panic("Latest")
	}
	return e.real.Latest(ctx)
}

func (e *panicking) Feed(_ context.Context, _ store.FeedQuery, use func(*store.Received) bool) (store.FeedEnd, error) {
	if e.feeds && use == nil { // a stream checks its cursor
		return store.FeedEnd{}, nil
	}
	panic("Feed")
}

func (e *panicking) Watch(m []store.MerchantID) (<-chan struct{}, func()) {
	if !e.feeds {
		panic("Watch")
	}
	return e.real.Watch(m)
}

func (e *panicking) WatchPartner(p store.PartnerID) (<-chan struct{}, func()) {
	if !e.feeds {
		panic("WatchPartner")
	}
	return e.real.WatchPartner(p)
}

// A handler that panics keeps nothing of what requests share: no memory of answers, no slot, no turn.
func TestAPanicGivesEverythingBack(t *testing.T) {
	for _, feeds := range []bool{false, true} {
		s, p, merchant := visited(t)
		tag := p.generate(merchant, "client-side", "").str("tagId")
		host := p.generate(merchant, "server-side", "example.com").str("record.name") + ".example.com"
		s.undocumented = true
		s.serve(&panicking{real: s.engine, feeds: feeds}, &s.dns)
		inner, panics := s.handle, 0
		s.handle = func(r *fasthttp.RequestCtx) {
			defer func() {
				if recover() != nil {
					panics++
					r.Response.Reset()
					WriteError(r, 500, "Unable to process request")
				}
			}()
			inner(r)
		}
		c := newStreamClient(t, s)
		ids := strings.NewReplacer("{merchantId}", merchant, "{tagId}", tag, "{secretId}", "x", "{keyId}", "x", "{erasureId}", "x")
		filter := "?merchantId=" + merchant
		queries := map[string][]string{
			"list_events": {filter}, "read_feed": {"", filter, "?wait=1", filter + "&wait=1"}, "export_events": {filter, filter + "&format=parquet"},
			"summarize_events": {filter}, "list_erasures": {filter}, "list_refused": {filter}, tryOperation: {"?tagId=" + tag},
		}
		bodies := map[string]string{
			"create_merchant": `{"name":"Shop"}`, "change_merchant": `{"name":"Shop"}`, "issue_key": `{}`,
			"generate_tag":  fmt.Sprintf(`{"merchantId":%q,"type":"client-side"}`, merchant),
			"verify_tag":    fmt.Sprintf(`{"merchantId":%q,"subdomain":%q}`, merchant, host),
			"erase_person":  fmt.Sprintf(`{"merchantId":%q,"muid":"x"}`, merchant),
			"personal_data": fmt.Sprintf(`{"merchantId":%q,"muid":"x"}`, merchant),
			tryOperation:    `{"email":"x@example.com","event":"Visit"}`,
		}
		requests := 0
		for path, res := range s.api.resources() {
			for method, op := range res {
				for _, query := range append([]string{""}, queries[op.name]...) {
					_, _, _ = c.read(p, method, ids.Replace(path)+query, bodies[op.name], "") // a stream that panics is cut off
					requests++
				}
			}
		}
		if stream, _ := c.open(p, filter); stream.StatusCode == 200 {
			_, _ = io.Copy(io.Discard, stream.Body) // until it is cut off
		}
		if panics < requests/4 {
			t.Errorf("only %d of %d requests have panicked", panics, requests)
		}
		for name, held := range map[string]int64{
			"memory of answers": s.api.listings.budget.Reserved(), "turns": s.api.turns.Reserved(),
			"slots of verifications": s.api.verifications.budget.Reserved(), "slots of readers": s.api.readers.budget.Reserved(),
			"slots of exports": s.api.exports.budget.Reserved(), "slots of trials": s.api.trials.budget.Reserved(),
			"slots of personal data": s.api.readings.budget.Reserved(),
		} {
			if held != 0 {
				t.Errorf("after panics, %s: %d are still held", name, held)
			}
		}
		if s.engine.(interface{ Any() bool }).Any() {
			t.Error("after panics, somebody still watches")
		}
	}
}
