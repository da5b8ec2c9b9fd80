package tag

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// scratch is the memory that a request with one event needs. It is reused.
type scratch struct {
	fields fields
	marks  [1]store.Mark
}

var scratchPool = sync.Pool{New: func() any { return new(scratch) }}

// mark is POST /mark/:tagId (spec, "Send event from a backend"). It answers when the events are on disk. Until then the
// marks alias the request.
func (s *Server) mark(ctx *fasthttp.RequestCtx, tag *store.Tag, from *sender) {
	from.bots, from.isBot = s.bots, s.bots.isBot(view(ctx.UserAgent()))
	body := trim(ctx.PostBody())
	if len(body) > 0 && body[0] == '[' {
		s.markBatch(ctx, tag, from, body)
		return
	}
	if !s.limits.admit(ctx, from, 1, len(body)+len(from.client)) {
		s.reports.refused(ctx, tag, from, from.limited, nil, nil)
		return
	}
	sc := scratchPool.Get().(*scratch)
	if refused := sc.fields.readMark(&sc.marks[0], tag, body, from); refused != nil {
		s.events[eventRefused].Inc()
		refused = refusalOf(ctx, refused)
		refused.send(ctx)
		s.reports.refused(ctx, tag, from, refused, &sc.fields, body)
	} else if s.record(ctx, tag, from, sc.marks[:]) {
		result := s.outcome(&sc.marks[0])
		result.send(ctx)
		s.reports.result(ctx, tag, from, result, &sc.fields, body)
	}
	scratchPool.Put(sc) // not deferred: after a panic the engine might still read the mark
}

// batch is the memory that a request with an array of events needs. It is reused, to spare the garbage collector.
type batch struct {
	elements [][]byte     // the events, which alias the body
	events   []fields     // of each event
	results  []*answer    // to each event
	marks    []store.Mark // of those that are not refused; they alias the body and the fields
}

// clear forgets the request. The fields lose their memory: it could grow with each batch.
func (b *batch) clear() {
	clear(b.elements)
	clear(b.events)
	clear(b.results)
	clear(b.marks)
}

var batchPool = sync.Pool{New: func() any { return new(batch) }}

// markBatch answers an array of events with one result for each, in order. A result is the answer to the event alone.
func (s *Server) markBatch(ctx *fasthttp.RequestCtx, tag *store.Tag, from *sender, body []byte) {
	b := batchPool.Get().(*batch)
	if s.parseBatch(ctx, tag, from, body, b) && (len(b.marks) == 0 || s.record(ctx, tag, from, b.marks)) {
		marks := b.marks
		for i := range b.results {
			if b.results[i] == nil {
				b.results[i] = s.outcome(&marks[0])
				s.reports.result(ctx, tag, from, b.results[i], &b.events[i], marks[0].Raw)
				marks = marks[1:]
			}
		}
		sendJSON(ctx, fasthttp.StatusOK, batchAnswer(b.results))
	}
	b.clear()
	batchPool.Put(b) // not deferred: see mark
}

// A batch of largeBatch bytes or more needs a slot to be parsed, which takes up to some milliseconds. Without slots, batches
// would occupy all processors, and other requests would wait several times: to be read, written and answered. Merchants take
// turns. Smaller batches are parsed in less than half a millisecond, and slots would cost a tenth of their rate.
const largeBatch = 64 << 10

// parsers is how many large batches may be parsed at the same time. Two of Go's threads are left for everything else.
// mtagd has one more thread than processors, so one processor is left.
func parsers() int64 { return int64(max(1, runtime.GOMAXPROCS(0)-2)) }

// parseBatch reads an array of events into b. Results are nil for the events that have marks. A large array waits for its
// merchant's turn. When the array is refused as a whole, parseBatch has answered the request, and returns false.
func (s *Server) parseBatch(ctx *fasthttp.RequestCtx, tag *store.Tag, from *sender, body []byte, b *batch) bool {
	if len(body) >= largeBatch {
		_ = s.parsing.Reserve(context.Background(), tag.Merchant, 1) // it waits for ever, and so does not fail
		defer s.parsing.Release(tag.Merchant, 1)
	}
	var refused *answer
	b.events, b.results, b.marks = b.events[:0], b.results[:0], b.marks[:0]
	if b.elements, refused = splitBatch(b.elements[:0], body); refused != nil {
		s.events[eventRefused].Inc()
		refused = refusalOf(ctx, refused)
		refused.send(ctx)
		s.reports.refused(ctx, tag, from, refused, nil, nil)
		return false
	}
	n := len(b.elements)
	if !s.limits.admit(ctx, from, n, len(body)+n*len(from.client)) {
		s.reports.refused(ctx, tag, from, from.limited, nil, nil)
		return false
	}
	b.events, b.results, b.marks = slices.Grow(b.events, n)[:n], slices.Grow(b.results, n)[:n], slices.Grow(b.marks, n)
	for i, element := range b.elements {
		var m store.Mark
		if b.results[i] = b.events[i].readMark(&m, tag, element, from); b.results[i] == nil {
			b.marks = append(b.marks, m)
		} else {
			s.events[eventRefused].Inc()
			s.reports.refused(ctx, tag, from, b.results[i], &b.events[i], element)
		}
	}
	return true
}

// batchAnswer returns the body of the answer to a batch.
func batchAnswer(results []*answer) []byte {
	size, good := 64, 0
	for _, r := range results {
		if size += len(r.result) + 1; r == accepted {
			good++
		}
	}
	b := append(make([]byte, 0, size), `{"accepted":`...)
	b = strconv.AppendInt(b, int64(good), 10)
	b = append(b, `,"results":[`...)
	for i, r := range results {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, r.result...)
	}
	return append(b, "]}"...)
}

// markResults are the counter and the answer of a mark, by the Outcome that the engine has set.
var markResults = [...]struct {
	counter eventOutcome
	answer  *answer
}{
	store.Recorded:   {eventRecorded, accepted},
	store.Duplicate:  {eventDuplicate, accepted},
	store.Unresolved: {eventUnresolved, noMUIDFound},
	store.Suppressed: {eventSuppressed, personSuppressed},
	store.Removed:    {eventRefused, tagNotFound},
}

// outcome counts a mark, and returns the answer for it.
func (s *Server) outcome(m *store.Mark) *answer {
	result := &markResults[m.Outcome]
	s.events[result.counter].Inc()
	return result.answer
}
