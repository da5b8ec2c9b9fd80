package archive

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	bolt "go.etcd.io/bbolt"
)

// metrics are what the archive counts.
type metrics struct {
	events, stored, dead atomic.Int64
	written              prometheus.Counter
}

func newMetrics() *metrics {
	return &metrics{written: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "mtagd_archive_written_bytes_total",
		Help: "Bytes that were written to pack files, also for what was written again.",
	})}
}

// load counts what is stored.
func (m *metrics) load(tx *bolt.Tx) error {
	files, err := loadFiles(tx)
	for _, r := range files {
		m.stored.Add(r.end)
		m.dead.Add(r.dead)
	}
	if err != nil {
		return err
	}
	return tx.Bucket(bucketMerchants).ForEach(func(_, v []byte) error {
		r, err := parseMerchant(v)
		m.events.Add(int64(r.events))
		return err
	})
}

// changed counts a change that was made.
func (m *metrics) changed(c *change) {
	for _, p := range c.added {
		m.events.Add(int64(p.events))
	}
	for _, p := range c.removed {
		m.events.Add(-int64(p.events))
	}
	for id, r := range c.files {
		m.stored.Add(r.end - c.known[id].end)
		m.dead.Add(r.dead - c.known[id].dead)
	}
	for _, id := range c.dropped {
		r := c.record(id)
		m.stored.Add(-r.end)
		m.dead.Add(-r.dead)
	}
}

// Metrics returns the archive's metrics.
func (a *Archive) Metrics() []prometheus.Collector {
	gauge := func(name, help string, of *atomic.Int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(of.Load()) })
	}
	return []prometheus.Collector{
		a.metrics.written,
		gauge("mtagd_archive_events", "Events in the archive.", &a.metrics.events),
		gauge("mtagd_archive_bytes", "Bytes of the pack files.", &a.metrics.stored),
		gauge("mtagd_archive_dead_bytes", "Bytes of the pack files that are not needed, and will be given back.", &a.metrics.dead),
	}
}

// Sizes returns the bytes of the pack files, and how many of these are dead.
func (a *Archive) Sizes() (all, dead int64) { return a.metrics.stored.Load(), a.metrics.dead.Load() }
