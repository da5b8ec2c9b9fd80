package edge

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"mtagd/store"
)

// scratch is the memory of one single-event request.
type scratch struct {
	fields fields
	marks  [1]store.Mark
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// mark is POST /mark/:tagId (spec, "Send event from a backend"). It answers after the events
// are on disk; the marks alias the request until then.
func (s *Server) mark(ctx *fasthttp.RequestCtx, tag *store.Tag) {
	body := trim(ctx.PostBody())
	if len(body) > 0 && body[0] == '[' {
		s.markBatch(ctx, tag, body)
		return
	}
	sc := scratches.Get().(*scratch)
	if refused := sc.fields.mark(&sc.marks[0], tag, body, cookieMUID(ctx), s.Now()); refused != nil {
		s.metrics.events[eventRefused].Inc()
		refused.send(ctx)
	} else if s.record(ctx, sc.marks[:]) {
		s.outcome(&sc.marks[0]).send(ctx)
	}
	scratches.Put(sc) // not deferred: after a panic the engine might still hold the mark
}

// markBatch answers an array of events with one result each, in their order; each is what the event
// would have been answered alone.
func (s *Server) markBatch(ctx *fasthttp.RequestCtx, tag *store.Tag, body []byte) {
	elements, refused := splitBatch(body)
	if refused != nil {
		s.metrics.events[eventRefused].Inc()
		refused.send(ctx)
		return
	}
	cookie, now := cookieMUID(ctx), s.Now()
	decoded := make([]fields, len(elements)) // kept until Record has returned: the marks alias them
	marks := make([]store.Mark, 0, len(elements))
	results := make([]*answer, len(elements)) // nil for those that Record decides
	for i, element := range elements {
		var m store.Mark
		if results[i] = decoded[i].mark(&m, tag, element, cookie, now); results[i] == nil {
			marks = append(marks, m)
		} else {
			s.metrics.events[eventRefused].Inc()
		}
	}
	if len(marks) > 0 && !s.record(ctx, marks) {
		return
	}
	good := 0
	for i := range results {
		if results[i] == nil {
			results[i] = s.outcome(&marks[0])
			marks = marks[1:]
		}
		if results[i] == accepted {
			good++
		}
	}
	sendJSON(ctx, fasthttp.StatusOK, appendResults(nil, good, results))
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

// mark makes the mark of one event, or says why it is none. The mark aliases the fields and the object.
func (f *fields) mark(m *store.Mark, tag *store.Tag, object []byte, cookie string, now time.Time) *answer {
	if refused := f.decode(object); refused != nil {
		return refused
	}
	id, refused := f.identity(cookie)
	if refused != nil {
		return refused
	}
	name, refused := f.name()
	if refused != nil {
		return refused
	}
	dedupeID, refused := f.dedupeID()
	if refused != nil {
		return refused
	}
	*m = store.Mark{
		Merchant: tag.Merchant,
		Tag:      tag.ID,
		Identity: id,
		Name:     name,
		Time:     f.time(now),
		DedupeID: dedupeID,
		Raw:      object,
	}
	return nil
}

// record hands marks to the engine. When that fails, it answers the request and reports false.
func (s *Server) record(ctx *fasthttp.RequestCtx, marks []store.Mark) bool {
	err := s.Engine.Record(context.Background(), marks)
	if err != nil {
		s.metrics.events[eventFailed].Add(float64(len(marks)))
		s.engineFailed(ctx, "record", err)
	}
	return err == nil
}

// outcome is the answer to a mark that the engine has decided on.
func (s *Server) outcome(m *store.Mark) *answer {
	switch m.Outcome {
	case store.Recorded:
		s.metrics.events[eventRecorded].Inc()
		return accepted
	case store.Duplicate:
		s.metrics.events[eventDuplicate].Inc()
		return accepted
	default:
		s.metrics.events[eventUnresolved].Inc()
		return noMUIDFound
	}
}

// engineFailed answers a request that the engine did not serve.
func (s *Server) engineFailed(ctx *fasthttp.RequestCtx, operation string, err error) {
	if store.KindOf(err) == store.KindUnavailable {
		s.Log.Warn("engine is unavailable", "operation", operation, "error", err)
		unavailable.send(ctx)
		return
	}
	s.Log.Error("engine failed", "operation", operation, "error", err)
	failed.send(ctx)
}
