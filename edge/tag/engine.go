package tag

import (
	"context"

	"github.com/valyala/fasthttp"

	"mtagd/edge/limit"
	"mtagd/edge/requestid"
	"mtagd/store"
)

// record records marks of a tag in the engine. When the engine fails, record answers the request and returns false.
func (s *Server) record(ctx *fasthttp.RequestCtx, tag *store.Tag, from *sender, marks []store.Mark) bool {
	// The marks alias the request, so this must wait for the engine even when the client has gone: the context never ends.
	err := s.cfg.Engine.Record(context.Background(), marks)
	if err != nil {
		s.events[eventFailed].Add(float64(len(marks)))
		s.reports.refused(ctx, tag, from, s.engineFailed(ctx, from.merchant, "record", err), nil, nil)
		return false
	}
	for i := range marks {
		if marks[i].Outcome == store.Recorded {
			from.stored += len(marks[i].Raw) + marks[i].Details.Bytes() + besidesRaw
		}
	}
	return true
}

// engineFailed answers a request that failed with an error of the engine: 503 when a retry may succeed, 500 otherwise. It
// returns the answer. Only one 503 leaves open whether the event is recorded, and says so.
func (s *Server) engineFailed(ctx *fasthttp.RequestCtx, merchant store.MerchantID, operation string, err error) *answer {
	result := failed
	switch store.KindOf(err) {
	case store.KindUnavailable:
		result = unavailable
	case store.KindUncertain:
		result = uncertain
	}
	if result == failed {
		s.cfg.Log.Error("engine failed", "operation", operation, "error", err, "request_id", requestid.Of(ctx))
	} else {
		s.cfg.Refusals.CountReason(limit.Unavailable, limit.Merchant(merchant), err.Error())
	}
	result.send(ctx)
	return result
}
