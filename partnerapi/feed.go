package partnerapi

import (
	"cmp"
	"context"
	"mime"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/partnerapi/export"
	"mtagd/store"
)

const (
	eventsPerRead = 100 // unless the request has a limit
	maxRead       = 1000
	maxWait       = 30 // seconds

	// A page ends when it has this many bytes, even below its limit. Its last event may begin just before.
	pageBytes  = 1 << 20
	beyondPage = 2 * store.MaxEventBytes

	// searchTime is about how long a request looks for its first event among those of others. An answer without events then
	// has hasMore.
	searchTime = 50 * time.Millisecond
)

// latest is the value of after that stands for the end of the feed.
const latest = "latest"

// readFeed answers with the events after a cursor, or with a stream of them. When there are none, it waits until mayWait
// ends.
func (a *api) readFeed(mayWait context.Context, r *fasthttp.RequestCtx, partner store.Partner) error {
	ctx := context.WithoutCancel(mayWait) // a request that must not wait is answered all the same
	p := params{args: r.QueryArgs()}
	merchant := p.id("merchantId")
	f := &reader{api: a, partner: partner.ID, caller: callerOf(r), bot: p.flag("isBot"), after: store.Cursor(p.id("after"))}
	limit := p.number("limit", eventsPerRead, maxRead)
	f.wait = p.seconds("wait", maxWait)
	streams := acceptsStream(r)
	if streams {
		for _, name := range []string{"limit", "wait"} {
			if p.args.Has(name) {
				p.reject(name, "is not for a stream, which has no end")
			}
		}
		if id := r.Request.Header.Peek("Last-Event-ID"); len(id) > 0 {
			f.after = store.Cursor(id)
		}
	}
	if p.err != nil {
		return p.err
	}
	if merchant != "" {
		m, err := a.merchant(ctx, partner, merchant)
		if err != nil {
			return err
		}
		f.merchant = m.ID
	}
	if f.after == latest {
		last, err := a.Engine.Latest(ctx)
		if err != nil {
			return err
		}
		f.after = last
	}
	if streams {
		return a.streamFeed(ctx, r, f)
	}
	if r.IsHead() {
		f.wait = 0
	}
	body, memory, err := f.awaitPage(ctx, mayWait, limit)
	if err != nil {
		return err
	}
	defer a.releaseWhenAnswered(r, memory)()
	send(r, fasthttp.StatusOK, body)
	return nil
}

// acceptsStream reports whether a request asks for server-sent events.
func acceptsStream(r *fasthttp.RequestCtx) bool {
	for part := range strings.SplitSeq(string(r.Request.Header.Peek(fasthttp.HeaderAccept)), ",") {
		kind, parameters, err := mime.ParseMediaType(part)
		if err == nil && kind == "text/event-stream" {
			weight, err := strconv.ParseFloat(cmp.Or(parameters["q"], "1"), 64)
			return err == nil && weight > 0
		}
	}
	return false
}

// seconds returns the value of a parameter that must be a whole number of seconds from 0 to most; 0 when it is not given.
func (p *params) seconds(name string, most int) time.Duration {
	value, given := p.text(name)
	if !given {
		return 0
	}
	n, err := strconv.ParseUint(value, 10, 32)
	if err != nil || n > uint64(most) {
		p.reject(name, "must be a whole number of seconds, at most %d", most)
	}
	return time.Duration(n) * time.Second
}

// awaitPage returns the next page of the feed. When it has no events, awaitPage waits for some, as long as the request
// wants, or until mayWait ends. Its errors include those of mayGoOn.
func (f *reader) awaitPage(ctx, mayWait context.Context, limit int) (body []byte, memory *reservation, err error) {
	if f.wait > 0 {
		release, err := f.api.readers.acquire(ctx, f.partner)
		if err != nil {
			return nil, nil, err
		}
		defer release()
		f.watch()
		defer f.stop()
	}
	metrics := f.api.metrics
	deadline := time.Now().Add(f.wait)
	for waits := f.wait > 0; ; {
		next, err := f.mayGoOn(ctx)
		if err != nil {
			return nil, nil, err
		}
		page := feedPage{limit: limit, size: pageBytes, head: `{"events":[`, between: ",", add: export.AppendJSON}
		if memory, err = f.readPage(ctx, &page); err != nil {
			return nil, nil, err
		}
		if page.events > 0 || page.more || !waits {
			metrics.events.WithLabelValues("page").Add(float64(page.events))
			return page.json(f.after), memory, nil
		}
		memory.release()
		metrics.waiting.Inc()
		waits = f.await(mayWait, min(next, time.Until(deadline))) || time.Now().Before(deadline) && mayWait.Err() == nil
		metrics.waiting.Dec()
	}
}

// readPage reads the next events into a page, and moves the cursor behind them. The caller must release the memory.
func (f *reader) readPage(ctx context.Context, page *feedPage) (*reservation, error) {
	memory, err := f.api.listings.reserve(ctx, f.partner, int64(page.size)+beyondPage)
	if err != nil {
		return nil, err
	}
	filled := false
	defer func() {
		if !filled {
			memory.release()
		}
	}()
	for begun, inTurn := time.Now(), page.inTurn; ; inTurn = true {
		upTo, err := f.api.Engine.Latest(ctx)
		if err != nil {
			return nil, err
		}
		q := store.FeedQuery{Bot: f.bot, After: f.after, UpTo: upTo}
		// After Latest: the merchants then include all that have events up to there.
		q.Merchants = f.owners()
		end, err := f.api.feedInTurn(ctx, f.partner, inTurn, q, page.take)
		if err != nil {
			return nil, err
		}
		f.after, page.more = end.Cursor, end.More
		if page.events > 0 || !page.more || time.Since(begun) > searchTime {
			filled = true
			memory.keep(len(page.body))
			return memory, nil
		}
	}
}

// feedInTurn calls the engine's Feed, when the partner's turn has come if inTurn is set.
func (a *api) feedInTurn(
	ctx context.Context, partner store.PartnerID, inTurn bool, q store.FeedQuery, use func(*store.Received) bool,
) (store.FeedEnd, error) {
	if inTurn {
		if err := a.takeTurn(ctx, partner); err != nil {
			return store.FeedEnd{}, err
		}
		defer a.endTurn(partner)
	}
	return a.Engine.Feed(ctx, q, use)
}

// feedPage is events of the feed as they are sent. It ends after limit events, or with the event that makes it larger than
// size bytes.
type feedPage struct {
	limit, size   int
	head, between string // before the first event, and before each further one
	add           func(body []byte, e *store.Received) []byte
	inTurn        bool // the first call of Feed waits for its turn (takeTurn), as all later ones do
	body          []byte
	events        int
	more          bool // there may be more events now
}

// take adds an event to the page, and returns whether there is room for another one.
func (p *feedPage) take(e *store.Received) bool {
	if p.events == 0 {
		p.body = append(make([]byte, 0, min(p.size, p.limit*(len(e.Raw)+besidesRaw))), p.head...)
	} else {
		p.body = append(p.body, p.between...)
	}
	p.body = p.add(p.body, e)
	p.events++
	return p.events < p.limit && len(p.body) < p.size
}

// json returns a page that is a JSON object, and ends at a cursor.
func (p *feedPage) json(end store.Cursor) []byte {
	b := p.body
	if p.events == 0 {
		b = []byte(p.head)
	}
	b = export.AppendString(append(b, `],"cursor":`...), string(end))
	b = strconv.AppendBool(append(b, `,"hasMore":`...), p.more)
	return append(b, '}')
}
