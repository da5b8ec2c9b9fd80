package load

import (
	"fmt"
	"time"
)

// Phase is one stretch of load.
type Phase struct {
	Target      Target
	Connections int
	Duration    time.Duration

	// Rate is the number of requests per second in an open loop: each request has an intended time, which does not
	// depend on earlier answers. 0 is a closed loop: each connection sends as soon as it has its last answer.
	Rate float64

	// Next appends a request to b and says how many events it carries. 0 events end the phase.
	Next func(b []byte) (request []byte, events int)

	// Resend sends a request again a second after its answer was 503, as senders of events do. Such an answer is not counted as refused.
	Resend bool
}

// ClosedLoop is a phase that sends events as fast as answers come, batch events in each request.
func ClosedLoop(t Target, kind Kind, connections, batch int, duration time.Duration) Phase {
	return Phase{Target: t, Connections: connections, Duration: duration, Next: Marks(t, kind, batch)}
}

// OpenLoop is a phase that offers a fixed number of plain events per second, batch events in each request.
func OpenLoop(t Target, connections, batch int, duration time.Duration, eventsPerSecond float64) Phase {
	p := ClosedLoop(t, Plain, connections, batch, duration)
	p.Rate = eventsPerSecond / float64(batch)
	return p
}

// IntendedTime is when the n-th request of an open loop is due, from the beginning of the phase.
func IntendedTime(n int, rate float64) time.Duration {
	return time.Duration(float64(n) / rate * float64(time.Second))
}

// Result is what a phase measured.
type Result struct {
	Took         time.Duration // from the first intended time to the last answer
	Requests     int           // sent
	Events       int           // accepted
	BodyBytes    int64         // bytes of request bodies that were answered, 503 excepted
	Refused      int           // requests answered 503
	NoRetryAfter int           // refused requests whose answer had no Retry-After
	Failed       int           // requests with another answer, or with none; and broken connections
	Unsent       int           // requests that were due and never found a free connection
	FirstFailure error

	// Latency is from the intended time to the answer. It has every request but the refused ones. Requests without
	// an answer, and unsent ones, count with the time that they had waited when the phase ended.
	Latency *Histogram
	// RefusalTime is from sending a request to its 503.
	RefusalTime *Histogram
}

// Rate is the number of accepted events per second.
func (r *Result) Rate() float64 { return float64(r.Events) / r.Took.Seconds() }

// AllAccepted returns an error unless the server accepted every request that was sent.
func (r *Result) AllAccepted() error {
	switch {
	case r.Failed > 0:
		return fmt.Errorf("%d requests failed; the first: %w", r.Failed, r.FirstFailure)
	case r.Refused > 0:
		return fmt.Errorf("%d requests were refused", r.Refused)
	}
	return nil
}

func (r *Result) fail(err error) {
	r.Failed++
	if r.FirstFailure == nil {
		r.FirstFailure = err
	}
}
