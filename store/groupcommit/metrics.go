package groupcommit

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are what a committer measures. Their names are the same for all engines, so that alerts and dashboards are too.
type Metrics struct {
	commits    prometheus.Histogram // seconds
	groups     prometheus.Histogram // marks and links
	lastCommit prometheus.Gauge     // seconds since 1970
}

// NewMetrics returns the metrics of an engine that is opened now.
func NewMetrics() *Metrics {
	m := &Metrics{
		commits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "mtagd_journal_commit_duration_seconds",
			Help:    "Time that a commit takes to be written and synced. Every event waits for one.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5, 30},
		}),
		groups: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "mtagd_journal_group_events",
			Help:    "Events and look-ups that are written as one group.",
			Buckets: []float64{1, 4, 16, 64, 256, 512, 1024, MaxMarks},
		}),
		lastCommit: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mtagd_journal_last_commit_timestamp_seconds",
			Help: "When the last commit was on disk; before the first one, when the engine was opened.",
		}),
	}
	m.lastCommit.SetToCurrentTime()
	return m
}

// Grouped notes how many marks and links are written together.
func (m *Metrics) Grouped(marks int) { m.groups.Observe(float64(marks)) }

// Committed notes that a commit which began at this time is on disk. A commit of events that are not kept writes nothing.
func (m *Metrics) Committed(began time.Time, wrote bool) {
	now := time.Now()
	m.lastCommit.Set(float64(now.UnixMilli()) / 1000)
	if wrote {
		m.commits.Observe(now.Sub(began).Seconds())
	}
}

// Collectors returns all metrics, with those of the queue.
func (m *Metrics) Collectors(q *Queue) []prometheus.Collector {
	return []prometheus.Collector{
		m.commits, m.groups, m.lastCommit,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "mtagd_journal_queue_requests",
			Help: "Requests that wait for a group to begin.",
		}, func() float64 {
			requests, _ := q.Length()
			return float64(requests)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "mtagd_journal_queue_bytes",
			Help: "Size of the requests that wait or are being written. At 32 MiB requests are refused.",
		}, func() float64 {
			_, bytes := q.Length()
			return float64(bytes)
		}),
	}
}
