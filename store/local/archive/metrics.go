package archive

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are what the archive counts.
type metrics struct {
	events, stored atomic.Int64
	written        prometheus.Counter
}

func newMetrics() *metrics {
	return &metrics{written: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "mtagd_archive_written_bytes_total",
		Help: "Bytes of blocks that were written to the archive, also for events that were written again.",
	})}
}

// add adds counts, which may be below 0.
func (m *metrics) add(u Usage) {
	m.events.Add(int64(u.Events))
	m.stored.Add(int64(u.Stored))
}

// Metrics returns the archive's metrics.
func (a *Archive) Metrics() []prometheus.Collector {
	gauge := func(name, help string, get func() int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(get()) })
	}
	return []prometheus.Collector{
		a.metrics.written,
		gauge("mtagd_archive_events", "Events in the archive: the older ones, packed.", a.metrics.events.Load),
		gauge("mtagd_archive_bytes", "Bytes of the archive's tables.", func() int64 { all, _ := a.Sizes(); return all }),
		gauge("mtagd_archive_dead_bytes", "Bytes of the archive's tables that are not needed; compactions give them back.", func() int64 { _, dead := a.Sizes(); return dead }),
	}
}

// Sizes returns the bytes of the tables, and about how many of these are dead. What is only in memtables is not counted.
func (a *Archive) Sizes() (all, dead int64) {
	all = a.db.TableBytes()
	return all, max(0, all-a.metrics.stored.Load())
}
