package load

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"mtagd/bench"
)

// Target is where load goes: the server's address, and the host and path that requests name.
type Target struct {
	Address netip.AddrPort
	Host    string
	Path    string
}

// NewTarget reads the address of a server, which must be a loopback address: nobody else's server can be put under load.
func NewTarget(address, host, path string) (t Target, err error) {
	t = Target{Host: host, Path: path}
	if t.Address, err = netip.ParseAddrPort(address); err == nil && !t.Address.Addr().IsLoopback() {
		err = fmt.Errorf("%s is not a loopback address", address)
	}
	return t, err
}

// Kind is what is special about the events of a source.
type Kind uint8

// The kinds of events.
const (
	Plain      Kind = iota // one of 100,000 muids
	Identified             // with an email and an event_id: the engine links identifiers and looks for duplicates
	Browser                // with all that the browser tag sends; bench.BrowserEventSize bytes
)

// Marks is an endless source of POST /mark requests for one tag, each with batch events; with 1, the body is an object.
func Marks(t Target, kind Kind, batch int) func(b []byte) (request []byte, events int) {
	size := bench.EventSize
	if kind == Browser {
		size = bench.BrowserEventSize
	}
	length := size
	if batch > 1 {
		length = batch*(size+1) + 1 // brackets and commas included
	}
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", t.Path, t.Host, length)
	made := uint64(0)
	if kind != Plain {
		made = rand.Uint64() // no two sources repeat an event_id
	}
	now := time.Now()
	appendEvent := func(b []byte) []byte {
		made++
		name := bench.Names[made%uint64(len(bench.Names))]
		if kind == Browser {
			return bench.AppendBrowserEvent(b, made, name, now)
		}
		return bench.AppendEvent(b, made, name, time.Time{}, kind == Identified)
	}
	return func(b []byte) ([]byte, int) {
		b = append(b, head...)
		if batch == 1 {
			return appendEvent(b), 1
		}
		for i := range batch {
			b = append(b, "[,"[min(i, 1)])
			b = appendEvent(b)
		}
		return append(b, ']'), batch
	}
}

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

	// Resend sends a request again a second after a 503, as senders of events do. That 503 is not counted as refused.
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

// Histogram counts latencies in microseconds, exact to three digits. Those above a minute count as a minute.
type Histogram struct{ counts *hdrhistogram.Histogram }

const longestLatency = time.Minute

// NewHistogram makes an empty histogram.
func NewHistogram() *Histogram {
	return &Histogram{hdrhistogram.New(1, longestLatency.Microseconds(), 3)}
}

// Record adds a latency.
func (h *Histogram) Record(d time.Duration) {
	_ = h.counts.RecordValue(min(max(d, time.Microsecond), longestLatency).Microseconds()) // always in range
}

// At is a percentile, 0 to 100.
func (h *Histogram) At(percentile float64) time.Duration {
	return time.Duration(h.counts.ValueAtQuantile(percentile)) * time.Microsecond
}

// Max is the longest latency.
func (h *Histogram) Max() time.Duration { return time.Duration(h.counts.Max()) * time.Microsecond }

// Count is the number of latencies.
func (h *Histogram) Count() int64 { return h.counts.TotalCount() }

// Add adds the latencies of another histogram.
func (h *Histogram) Add(other *Histogram) { h.counts.Merge(other.counts) }
