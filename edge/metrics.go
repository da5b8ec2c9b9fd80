package edge

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

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

// metrics has the counters of the tag hosts, looked up once by their labels: a look-up costs more than the increment.
// The partner API has fewer requests, and more endpoints: its counters are looked up each time.
type metrics struct {
	requests   *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	tags       [tag.Endpoints]tagMetrics
	panics     prometheus.Counter
	handshakes struct { // by how they ended
		done, failed prometheus.Counter
		limited      prometheus.Counter // not begun: the client had too many under way
	}
}

// tagMetrics are the metrics of one endpoint of the tag hosts.
type tagMetrics struct {
	requests [600]prometheus.Counter // by status code; nil for codes that are never sent
	duration prometheus.Observer
}

// statusCodes are the codes that tag hosts answer with.
var statusCodes = []int{
	200, 201, 204, 304, 308,
	400, 401, 403, 404, 405, 408, 413, 421, 429, 431,
	500, 503,
}

func newMetrics(reg prometheus.Registerer) *metrics {
	registered := promauto.With(reg)
	handshakes := registered.NewCounterVec(prometheus.CounterOpts{
		Name: "mtagd_tls_handshakes_total",
		Help: "TLS handshakes, by outcome: done, failed, or limited by --handshakes-per-ip.",
	}, []string{"outcome"})
	m := &metrics{
		requests: registered.NewCounterVec(prometheus.CounterOpts{
			Name: "mtagd_http_requests_total",
			Help: "Requests answered, by surface (partner: the API; tag: the tag hosts), endpoint and status code. Endpoints are mark, id, script and health, the API's operations such as list_events, console_…, and other.",
		}, []string{"surface", "endpoint", "code"}),
		duration: registered.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "mtagd_http_request_duration_seconds",
			Help:    "Time from the end of a request to its answer. With read_feed it includes the up to 30 s that a client wants to wait; of streams and exports it is the time to their beginning.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5},
		}, []string{"surface", "endpoint"}),
		panics: registered.NewCounter(prometheus.CounterOpts{
			Name: "mtagd_panics_total",
			Help: "Requests that ended in a panic: a bug in mtagd.",
		}),
	}
	surface := surfaceNames[tagSurface]
	for e := range tag.Endpoints {
		m.tags[e].duration = m.duration.WithLabelValues(surface, e.String())
		for _, code := range statusCodes {
			m.tags[e].requests[code] = m.requests.WithLabelValues(surface, e.String(), strconv.Itoa(code))
		}
	}
	m.handshakes.done = handshakes.WithLabelValues("done")
	m.handshakes.failed = handshakes.WithLabelValues("failed")
	m.handshakes.limited = handshakes.WithLabelValues("limited")
	return m
}

func (m *metrics) countTagRequest(e tag.Endpoint, code int, took time.Duration) {
	t := &m.tags[e]
	if code >= len(t.requests) || t.requests[code] == nil {
		code = 500 // a code that is not in the table is an error in this program
	}
	t.requests[code].Inc()
	t.duration.Observe(took.Seconds())
}

func (m *metrics) countPartnerRequest(endpoint string, code int, took time.Duration) {
	m.requests.WithLabelValues(surfaceNames[partnerSurface], endpoint, strconv.Itoa(code)).Inc()
	m.duration.WithLabelValues(surfaceNames[partnerSurface], endpoint).Observe(took.Seconds())
}
