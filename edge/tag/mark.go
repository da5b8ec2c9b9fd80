package tag

import (
	"context"
	"runtime"
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
		s.metrics.events[eventRefused].Inc()
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

// markBatch answers an array of events with one result for each, in order. A result is the answer that the event would
// have got alone.
func (s *Server) markBatch(ctx *fasthttp.RequestCtx, tag *store.Tag, from *sender, body []byte) {
	marks, events, results, ok := s.parseBatch(ctx, tag, from, body)
	if !ok {
		return
	}
	if len(marks) > 0 && !s.record(ctx, tag, from, marks) {
		return
	}
	good := 0
	for i := range results {
		if results[i] == nil {
			results[i] = s.outcome(&marks[0])
			s.reports.result(ctx, tag, from, results[i], &events[i], marks[0].Raw)
			marks = marks[1:]
		}
		if results[i] == accepted {
			good++
		}
	}
	sendJSON(ctx, fasthttp.StatusOK, appendResults(nil, good, results))
}

// largeBatch is from how many bytes on a batch needs a slot to be parsed. Parsing one takes up to some milliseconds. Without
// slots, batches would occupy all processors, and every other request would wait for a processor several times: to be read,
// to be written and to be answered. Merchants take turns. Smaller batches are parsed in less than half a millisecond, and
// turns would cost a tenth of their rate.
const largeBatch = 64 << 10

// parsers is how many large batches may be parsed at the same time. Two of Go's threads are left for everything else.
// mtagd has one more thread than processors, so one processor is left.
func parsers() int64 { return int64(max(1, runtime.GOMAXPROCS(0)-2)) }

// parseBatch reads an array of events into marks, which alias the body. events has the fields of each event, and results its
// answer: nil for the marks, a refusal for the others. A large array waits for its merchant's turn. When the array is
// refused as a whole, parseBatch has answered the request, and ok is false.
func (s *Server) parseBatch(
	ctx *fasthttp.RequestCtx, tag *store.Tag, from *sender, body []byte,
) (marks []store.Mark, events []fields, results []*answer, ok bool) {
	if len(body) >= largeBatch {
		_ = s.parsing.Reserve(context.Background(), tag.Merchant, 1) // it waits for ever, and so does not fail
		defer s.parsing.Release(tag.Merchant, 1)
	}
	elements, refused := splitBatch(body)
	if refused != nil {
		s.metrics.events[eventRefused].Inc()
		refused = refusalOf(ctx, refused)
		refused.send(ctx)
		s.reports.refused(ctx, tag, from, refused, nil, nil)
		return nil, nil, nil, false
	}
	if !s.limits.admit(ctx, from, len(elements), len(body)+len(elements)*len(from.client)) {
		s.reports.refused(ctx, tag, from, from.limited, nil, nil)
		return nil, nil, nil, false
	}
	events = make([]fields, len(elements)) // a mark aliases its fields until Record has returned
	marks = make([]store.Mark, 0, len(elements))
	results = make([]*answer, len(elements))
	for i, element := range elements {
		var m store.Mark
		if results[i] = events[i].readMark(&m, tag, element, from); results[i] == nil {
			marks = append(marks, m)
		} else {
			s.metrics.events[eventRefused].Inc()
			s.reports.refused(ctx, tag, from, results[i], &events[i], element)
		}
	}
	return marks, events, results, true
}

func appendResults(b []byte, good int, results []*answer) []byte {
	b = append(b, `{"accepted":`...)
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

// outcome counts a mark by the Outcome that the engine has set, and returns the answer for it.
func (s *Server) outcome(m *store.Mark) *answer {
	switch m.Outcome {
	case store.Recorded:
		s.metrics.events[eventRecorded].Inc()
		return accepted
	case store.Duplicate:
		s.metrics.events[eventDuplicate].Inc()
		return accepted
	case store.Suppressed:
		s.metrics.events[eventSuppressed].Inc()
		return personSuppressed
	case store.Removed:
		s.metrics.events[eventRefused].Inc()
		return tagNotFound
	default:
		s.metrics.events[eventUnresolved].Inc()
		return noMUIDFound
	}
}
