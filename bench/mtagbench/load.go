package main

import (
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// phase is one stretch of load.
type phase struct {
	target   target
	conns    int
	duration time.Duration

	// rate is requests per second, each with an intended time that does not wait for answers (open
	// loop). 0 sends on each connection as soon as its last answer is there (closed loop).
	rate float64

	// next appends a request and tells how many events are in it; 0 events end the phase.
	next func(b []byte) (request []byte, events int)
}

// marking is a closed-loop phase of events for one tag, batch of them in a request.
func marking(t target, conns, batch int, duration time.Duration) phase {
	return phase{target: t, conns: conns, duration: duration, next: newMarks(t, batch, false).next}
}

// identifying is a closed-loop phase of events with email and event_id, as the browser tag sends them.
func identifying(t target, conns int, duration time.Duration) phase {
	return phase{target: t, conns: conns, duration: duration, next: newMarks(t, 1, true).next}
}

// offering is marking as an open loop of so many events per second.
func offering(t target, conns, batch int, duration time.Duration, events float64) phase {
	p := marking(t, conns, batch, duration)
	p.rate = events / float64(batch)
	return p
}

// result is what came of a phase.
type result struct {
	took      time.Duration // from the first intended request to the last answer
	requests  int           // sent
	events    int           // accepted
	bodyBytes int64         // request bytes of accepted events
	refused   int           // answered 503
	rude      int           // of these, without Retry-After
	failed    int           // answered otherwise, or not at all
	unsent    int           // due, and no connection was free until the end
	firstErr  error

	// latency is from the intended time to the answer, in µs, of every request: accepted, failed, and
	// those that were never sent, with the time that they had waited at the end.
	latency *hdrhistogram.Histogram
	// refusal is from the sending to the answer of requests that were answered 503, in µs.
	refusal *hdrhistogram.Histogram
}

// rate is accepted events per second.
func (r *result) rate() float64 { return float64(r.events) / r.took.Seconds() }

// at is a percentile of the latency.
func (r *result) at(percentile float64) time.Duration {
	return quantile(r.latency, percentile)
}

func (r *result) max() time.Duration { return time.Duration(r.latency.Max()) * time.Microsecond }

func (r *result) fail(n int, err error) {
	r.failed += n
	if r.firstErr == nil {
		r.firstErr = err
	}
}

// healthy is nil when every request was accepted.
func (r *result) healthy() error {
	switch {
	case r.failed > 0:
		return fmt.Errorf("%d requests failed; the first: %w", r.failed, r.firstErr)
	case r.refused > 0:
		return fmt.Errorf("%d requests were refused", r.refused)
	}
	return nil
}

// newHistogram holds up to a minute to three digits.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, 60_000_000, 3) }

func record(h *hdrhistogram.Histogram, d time.Duration) {
	// In range after clamping, so that the error cannot be.
	_ = h.RecordValue(min(max(d.Microseconds(), 1), 60_000_000))
}

// intendedTime is when the n-th request of an open loop is to be sent. It depends on nothing that the server does.
func intendedTime(n int, rate float64) time.Duration {
	return time.Duration(float64(n) / rate * float64(time.Second))
}

// quantile is a percentile of a histogram of µs.
func quantile(h *hdrhistogram.Histogram, percentile float64) time.Duration {
	return time.Duration(h.ValueAtQuantile(percentile)) * time.Microsecond
}
