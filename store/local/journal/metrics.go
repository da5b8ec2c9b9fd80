package journal

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store/group"
)

// metrics are what the committer measures, and the length of the queue.
type metrics struct {
	commits    prometheus.Histogram // seconds
	groups     prometheus.Histogram // marks and links
	lastCommit prometheus.Gauge     // seconds since 1970
}

func newMetrics() *metrics {
	m := &metrics{
		commits: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "mtagd_journal_commit_duration_seconds",
			Help:    "Time that a commit takes to be written and synced.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5, 30},
		}),
		groups: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "mtagd_journal_group_events",
			Help:    "Events and look-ups that are written as one group.",
			Buckets: []float64{1, 4, 16, 64, 256, 512, 1024, group.MaxMarks},
		}),
		lastCommit: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "mtagd_journal_last_commit_timestamp_seconds",
			Help: "When the last commit was on disk; before the first one, when the journal was opened.",
		}),
	}
	m.lastCommit.SetToCurrentTime()
	return m
}

// committed notes that a commit which began at this time is on disk. A commit of events that are not kept writes nothing.
func (m *metrics) committed(began time.Time, wrote bool) {
	now := time.Now()
	m.lastCommit.Set(float64(now.UnixMilli()) / 1000)
	if wrote {
		m.commits.Observe(now.Sub(began).Seconds())
	}
}

// collectors returns all metrics. queued returns how many requests wait, and the size of those that wait or are being
// written.
func (m *metrics) collectors(queued func() (requests, bytes int)) []prometheus.Collector {
	return []prometheus.Collector{
		m.commits, m.groups, m.lastCommit,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "mtagd_journal_queue_requests",
			Help: "Requests that wait for a group to begin.",
		}, func() float64 {
			requests, _ := queued()
			return float64(requests)
		}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "mtagd_journal_queue_bytes",
			Help: "Size of the requests that wait or are being written.",
		}, func() float64 {
			_, bytes := queued()
			return float64(bytes)
		}),
	}
}
