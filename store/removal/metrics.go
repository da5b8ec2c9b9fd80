package removal

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"mtagd/store"
)

// metrics are those of an engine's removals. Their names are the same for all engines, so that alerts are too.
type metrics struct {
	open, oldest prometheus.Gauge
	failing      *prometheus.GaugeVec
	failures     prometheus.Counter
}

// newMetrics returns the metrics, registered unless r is nil.
func newMetrics(r prometheus.Registerer) *metrics {
	registered := promauto.With(r)
	return &metrics{
		open: registered.NewGauge(prometheus.GaugeOpts{
			Name: "mtagd_erasures_open", Help: "Erasures of persons that are not done.",
		}),
		oldest: registered.NewGauge(prometheus.GaugeOpts{
			Name: "mtagd_erasure_oldest_timestamp_seconds", Help: "When the oldest open erasure was requested; 0 when none is open.",
		}),
		failing: registered.NewGaugeVec(prometheus.GaugeOpts{
			Name: "mtagd_removals_failing", Help: "Removals of events whose last attempt has failed, by kind: erasure, deletion, retention.",
		}, []string{"kind"}),
		failures: registered.NewCounter(prometheus.CounterOpts{
			Name: "mtagd_removal_failures_total", Help: "Attempts to remove events that have failed.",
		}),
	}
}

// set notes which removals are not done, the oldest first. It reports whether the last attempt at an erasure or a deletion
// has failed.
func (m *metrics) set(open []store.Erasure, removals []store.Removal) bool {
	m.open.Set(float64(len(open)))
	m.oldest.Set(0)
	if len(open) > 0 {
		m.oldest.Set(float64(open[0].At.UnixMilli()) / 1e3)
	}
	failing := map[string]int{"erasure": 0, string(store.OfDeletion): 0, string(store.OfRetention): 0}
	for _, e := range open {
		if e.LastError != "" {
			failing["erasure"]++
		}
	}
	for _, r := range removals {
		if r.LastError != "" {
			failing[string(r.Kind)]++
		}
	}
	for kind, n := range failing {
		m.failing.WithLabelValues(kind).Set(float64(n))
	}
	return failing["erasure"]+failing[string(store.OfDeletion)] > 0
}
