package edge

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are resolved once: looking up a label costs more than counting.
type metrics struct {
	requests [surfaces][600]prometheus.Counter // by status code; nil where the code is never answered
	duration [endpoints]prometheus.Observer
	panics   prometheus.Counter
	events   [outcomes]prometheus.Counter

	handshakes [handshakeOutcomes]prometheus.Counter
}

// endpoint is a label of the duration histogram.
type endpoint uint8

const (
	endpointOther endpoint = iota
	endpointMark
	endpointID
	endpointScript
	endpointPartner
	endpoints
)

var endpointNames = [endpoints]string{"other", "mark", "id", "script", "partner"}

// eventOutcome is what became of an event, as counted.
type eventOutcome uint8

const (
	eventRecorded eventOutcome = iota
	eventDuplicate
	eventUnresolved
	eventRefused // the request was wrong
	eventFailed  // the engine did not take it
	outcomes
)

var outcomeNames = [outcomes]string{"recorded", "duplicate", "unresolved", "refused", "failed"}

// handshakeOutcome is how a TLS handshake ended.
type handshakeOutcome uint8

const (
	handshakeDone handshakeOutcome = iota
	handshakeFailed
	handshakeLimited // too many under way for the client's address
	handshakeOutcomes
)

var handshakeNames = [handshakeOutcomes]string{"done", "failed", "limited"}

// statusCodes are those that the tag server and the partner API answer with.
var statusCodes = []int{200, 201, 204, 304, 308, 400, 401, 403, 404, 405, 408, 409, 413, 421, 422, 429, 431, 500, 503}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	requests := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "mtagd_http_requests_total",
		Help: "Requests answered, by surface and status code.",
	}, []string{"surface", "code"})
	duration := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "mtagd_http_request_duration_seconds",
		Help:    "Time from the end of a request to its answer.",
		Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5},
	}, []string{"endpoint"})
	events := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "mtagd_events_total",
		Help: "Events received, by what became of them.",
	}, []string{"outcome"})
	handshakes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "mtagd_tls_handshakes_total",
		Help: "TLS handshakes, by how they ended.",
	}, []string{"outcome"})
	m := &metrics{panics: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "mtagd_panics_total",
		Help: "Requests that ended in a panic.",
	})}
	if reg != nil {
		for _, c := range []prometheus.Collector{requests, duration, events, handshakes, m.panics} {
			if err := reg.Register(c); err != nil {
				return nil, err
			}
		}
	}
	for sf, name := range surfaceNames {
		for _, code := range statusCodes {
			m.requests[sf][code] = requests.WithLabelValues(name, strconv.Itoa(code))
		}
	}
	for e, name := range endpointNames {
		m.duration[e] = duration.WithLabelValues(name)
	}
	for o, name := range outcomeNames {
		m.events[o] = events.WithLabelValues(name)
	}
	for o, name := range handshakeNames {
		m.handshakes[o] = handshakes.WithLabelValues(name)
	}
	return m, nil
}

// request counts an answered request.
func (m *metrics) request(sf surface, e endpoint, code int, d time.Duration) {
	if code >= len(m.requests[sf]) || m.requests[sf][code] == nil {
		code = 500 // a code outside the table is a fault of this program
	}
	m.requests[sf][code].Inc()
	m.duration[e].Observe(d.Seconds())
}
