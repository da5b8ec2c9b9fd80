package partnerapi

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/valyala/fasthttp"
)

// metrics are the metrics of the API besides those that the front door has of every request.
type metrics struct {
	waiting prometheus.Gauge
	streams prometheus.Gauge
	exports prometheus.Gauge
	events  *prometheus.CounterVec // by way
}

// newMetrics registers the metrics, unless reg is nil.
func newMetrics(reg prometheus.Registerer) *metrics {
	registered := promauto.With(reg)
	gauge := func(name, help string) prometheus.Gauge {
		return registered.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &metrics{
		waiting: gauge("mtagd_feed_waiting", "Requests for the feed that wait for events."),
		streams: gauge("mtagd_feed_streams", "Streams of the feed (server-sent events) that are open."),
		exports: gauge("mtagd_exports", "Exports of partners that are under way."),
		events: registered.NewCounterVec(prometheus.CounterOpts{
			Name: "mtagd_feed_events_total",
			Help: "Events that were read in the order of receipt, by way: page, stream or export.",
		}, []string{"way"}),
	}
	for _, way := range []string{"page", "stream", "export"} {
		m.events.WithLabelValues(way)
	}
	return m
}

// endpointValue is the name of the user value that holds the name of the operation that a request was for, a string.
const endpointValue = "endpoint"

// SetEndpoint sets what EndpointOf returns, for a request that something in front of the API answers. There must be few
// names.
func SetEndpoint(r *fasthttp.RequestCtx, name string) { r.SetUserValue(endpointValue, name) }

// EndpointOf returns the name of the operation that a request was for, such as list_events; "" when there is none at its
// path and method. It is for metrics.
func EndpointOf(r *fasthttp.RequestCtx) string {
	name, _ := r.UserValue(endpointValue).(string)
	return name
}
