package rank

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// newDuration returns a histogram of how long background work takes.
func newDuration(name, help string) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 120},
	})
}

func newMergeDuration() prometheus.Histogram {
	return newDuration("mtagd_index_merge_duration_seconds",
		"Time that a merge takes to write the events in memory into index.db.")
}

func newCompactionDuration() prometheus.Histogram {
	return newDuration("mtagd_index_compaction_duration_seconds",
		"Time that a compaction takes to merge segments of a merchant in index.db.")
}

// observeSince adds the time since then to a histogram.
func observeSince(h prometheus.Histogram, then time.Time) { h.Observe(time.Since(then).Seconds()) }

func newEventCount(events func() uint64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "mtagd_index_events",
		Help: "Events of all merchants in the index.",
	}, func() float64 { return float64(events()) })
}
