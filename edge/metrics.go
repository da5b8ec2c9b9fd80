package edge

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/edge/tag"
)

// surface is one of the two protocols behind the front door, a label of metrics and logs. Each has its own form of
// error.
type surface uint8

const (
	tagSurface surface = iota
	partnerSurface
	surfaces
)

var surfaceNames = [surfaces]string{"tag", "partner"}

// endpoint is a label of the duration histogram: an endpoint of a tag host, or the partner API.
type endpoint = tag.Endpoint

const (
	endpointPartner = tag.Endpoints
	endpoints       = tag.Endpoints + 1
)

func endpointName(e endpoint) string {
	if e == endpointPartner {
		return "partner"
	}
	return e.String()
}

// metrics has every counter, looked up once by its labels: a look-up costs more than the increment.
type metrics struct {
	requests    [surfaces][600]prometheus.Counter // by status code; nil for codes that are never sent
	duration    [endpoints]prometheus.Observer
	panics      prometheus.Counter
	handshakes  [handshakeOutcomes]prometheus.Counter
	connections [connectionEnds]prometheus.Counter
}

// connectionEnd is why the server closed a connection to keep room for others, a label of the counter of these.
type connectionEnd uint8

const (
	connectionRefused connectionEnd = iota // when it was accepted: its client had too many
	connectionClosed                       // later, for a new one: all connections were in use
	connectionEnds
)

var connectionNames = [connectionEnds]string{"refused", "closed"}

// handshakeOutcome is how a TLS handshake ended, a label of the handshake counter.
type handshakeOutcome uint8

const (
	handshakeDone handshakeOutcome = iota
	handshakeFailed
	handshakeLimited // not begun: the client had too many under way
	handshakeOutcomes
)

var handshakeNames = [handshakeOutcomes]string{"done", "failed", "limited"}

// statusCodes are the codes that the tag protocol and the partner API answer with. 499 is the partner API's: the client
// has gone. 302 is the demo shop's.
var statusCodes = []int{
	200, 201, 204, 302, 304, 308,
	400, 401, 403, 404, 405, 408, 409, 413, 421, 422, 429, 431, 499,
	500, 503,
}

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
	handshakes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "mtagd_tls_handshakes_total",
		Help: "TLS handshakes, by outcome.",
	}, []string{"outcome"})
	connections := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "mtagd_connections_limited_total",
		Help: "Connections refused because their client had too many, or closed because all connections were in use.",
	}, []string{"outcome"})
	m := &metrics{panics: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "mtagd_panics_total",
		Help: "Requests that ended in a panic.",
	})}
	if reg != nil {
		for _, c := range []prometheus.Collector{requests, duration, handshakes, connections, m.panics} {
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
	for e := range endpoints {
		m.duration[e] = duration.WithLabelValues(endpointName(e))
	}
	for o, name := range handshakeNames {
		m.handshakes[o] = handshakes.WithLabelValues(name)
	}
	for e, name := range connectionNames {
		m.connections[e] = connections.WithLabelValues(name)
	}
	return m, nil
}

// countRequest counts an answered request.
func (m *metrics) countRequest(sf surface, e endpoint, code int, took time.Duration) {
	if code >= len(m.requests[sf]) || m.requests[sf][code] == nil {
		code = 500 // a code that is not in the table is an error in this program
	}
	m.requests[sf][code].Inc()
	m.duration[e].Observe(took.Seconds())
}
