// Package removal measures what engines remove in the background: the events of persons, of deleted merchants, and those that are
// past the retention.
package removal

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
)

// Metrics are the metrics of an engine's removals. Their names are the same for all engines, so that alerts are too.
type Metrics struct {
	open, oldest, failing prometheus.Gauge
	failures              prometheus.Counter
}

// NewMetrics returns the metrics, registered unless r is nil.
func NewMetrics(r prometheus.Registerer) *Metrics {
	m := &Metrics{
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mtagd_erasures_open", Help: "Erasures of persons that are not done.",
		}),
		oldest: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mtagd_erasure_oldest_timestamp_seconds", Help: "When the oldest erasure that is not done was requested; 0 without one.",
		}),
		failing: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mtagd_removals_failing", Help: "Merchants whose events could not be removed at the last attempt.",
		}),
		failures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "mtagd_removal_failures_total", Help: "Attempts to remove events that have failed.",
		}),
	}
	if r != nil {
		r.MustRegister(m.open, m.oldest, m.failing, m.failures)
	}
	return m
}

// Set notes which erasures are not done, the oldest first.
func (m *Metrics) Set(open []store.Erasure) {
	m.open.Set(float64(len(open)))
	m.oldest.Set(0)
	if len(open) > 0 {
		m.oldest.Set(float64(open[0].At.UnixMilli()) / float64(time.Second/time.Millisecond))
	}
}

// Attempted notes of how many merchants the removal has failed.
func (m *Metrics) Attempted(failed int) {
	m.failing.Set(float64(failed))
	m.failures.Add(float64(failed))
}
