package delivery

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics is what operators see. Destinations are counted by type, because there may be thousands.
type metrics struct {
	events   *prometheus.CounterVec
	requests *prometheus.CounterVec
	lag      prometheus.Histogram
	took     prometheus.Histogram
	paused   prometheus.Counter
}

// newMetrics registers the metrics, unless reg is nil.
func newMetrics(reg prometheus.Registerer, s *Service) *metrics {
	registered := promauto.With(reg)
	m := &metrics{
		events: registered.NewCounterVec(prometheus.CounterOpts{Name: "mtagd_delivery_events_total",
			Help: "Events by type of destination and what became of them: delivered, filtered, no_consent, erased or dead."}, []string{"type", "outcome"}),
		requests: registered.NewCounterVec(prometheus.CounterOpts{Name: "mtagd_delivery_requests_total",
			Help: "Requests to destinations, by type and result: delivered or failed."}, []string{"type", "result"}),
		lag: registered.NewHistogram(prometheus.HistogramOpts{Name: "mtagd_delivery_lag_seconds",
			Help: "Time from the receipt of an event to its delivery.", Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2, 5, 30, 300, 3600, 86400}}),
		took: registered.NewHistogram(prometheus.HistogramOpts{Name: "mtagd_delivery_request_seconds",
			Help: "Time that a destination takes to answer.", Buckets: []float64{.005, .025, .1, .25, 1, 5, 15}}),
		paused: registered.NewCounter(prometheus.CounterOpts{Name: "mtagd_delivery_paused_total",
			Help: "Destinations that the service has paused: they answered 410, or have too many dead letters."}),
	}
	for name := range s.kinds { // a counter that is not there yet has no first increase
		for _, outcome := range outcomes {
			m.events.WithLabelValues(name, outcome)
		}
	}
	for _, of := range []struct {
		name, help string
		counts     func(r *runner) bool
	}{
		{"mtagd_delivery_destinations", "Destinations whose events this node delivers.", func(*runner) bool { return true }},
		{"mtagd_delivery_failing", "Destinations that have taken nothing since their last failure.", func(r *runner) bool { return r.isOn() && r.st.Failures > 0 }},
		{"mtagd_delivery_broken", "Destinations whose settings or secrets cannot be used.", func(r *runner) bool { return r.problem != "" }},
		{"mtagd_delivery_dead_letters", "Destinations that have dead letters.", func(r *runner) bool { return r.st.Letters > 0 }},
	} {
		registered.NewGaugeFunc(prometheus.GaugeOpts{Name: of.name, Help: of.help}, func() float64 { return s.countRunners(of.counts) })
	}
	return m
}

// countRunners counts the destinations of which something is true.
func (s *Service) countRunners(is func(r *runner) bool) (n float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sh := range s.shards {
		sh.mu.Lock()
		for _, of := range sh.of {
			for _, r := range of.runners {
				if is(r) {
					n++
				}
			}
		}
		sh.mu.Unlock()
	}
	return n
}

var outcomes = map[fate]string{delivered: "delivered", filtered: "filtered", noConsent: "no_consent", erased: "erased", dead: "dead", expired: "dead"}

func (m *metrics) count(kind string, events [fates]uint64) {
	for f, outcome := range outcomes {
		if events[f] > 0 {
			m.events.WithLabelValues(kind, outcome).Add(float64(events[f]))
		}
	}
}
