package rank

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bolt "go.etcd.io/bbolt"

	"mtagd/store"
	"mtagd/store/local/codec"
)

// Metrics returns the index's metrics.
func (x *Index) Metrics() []prometheus.Collector {
	return []prometheus.Collector{x.mergeTime, prometheus.NewGaugeFunc(
		prometheus.GaugeOpts{Name: "mtagd_index_events", Help: "Events of all merchants in the index."},
		func() float64 { return float64(x.events.Load()) }), &sizes{x: x}}
}

// newDuration returns a histogram of how long background work takes.
func newDuration(name, help string) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: name, Help: help, Buckets: []float64{.01, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 120},
	})
}

// sizes are the metrics of the sizes of stored events: of all merchants, and of the largest ones. A service may have 50,000
// merchants, so not each has a metric: what fills a disk is among the largest.
type sizes struct {
	x *Index

	mu       sync.Mutex
	total    uint64
	largest  []merchantSize
	measured time.Time
}

type merchantSize struct {
	merchant store.MerchantID
	bytes    uint64
}

const (
	largestMerchants = 100
	sizesInterval    = time.Minute // how old the sizes may be
)

var (
	bytesDesc = prometheus.NewDesc("mtagd_index_event_bytes",
		"Bytes of all events, before compression; up to a minute old.", nil, nil)
	merchantBytesDesc = prometheus.NewDesc("mtagd_merchant_event_bytes",
		"Bytes of a merchant's events, before compression; only of the 100 largest merchants.",
		[]string{"merchant"}, nil)
)

// Describe implements prometheus.Collector.
func (s *sizes) Describe(to chan<- *prometheus.Desc) {
	to <- bytesDesc
	to <- merchantBytesDesc
}

// Collect implements prometheus.Collector.
func (s *sizes) Collect(to chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.measured) > sizesInterval {
		if err := s.measure(); err != nil {
			s.x.log.Error("the sizes of events were not measured", "error", err)
			return
		}
	}
	to <- prometheus.MustNewConstMetric(bytesDesc, prometheus.GaugeValue, float64(s.total))
	for _, m := range s.largest {
		to <- prometheus.MustNewConstMetric(merchantBytesDesc, prometheus.GaugeValue, float64(m.bytes), string(m.merchant))
	}
}

// measure reads the root records. Those that are damaged are left out: requests for these merchants report them.
func (s *sizes) measure() error {
	var total uint64
	var all []merchantSize
	if err := s.x.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketRoots).ForEach(func(k, v []byte) error {
			if bytes, err := decodeSize(codec.Unseal(k, v)); err == nil && len(k) == 16 {
				total += bytes
				all = append(all, merchantSize{store.MerchantKey(k).ID(), bytes})
			}
			return nil
		})
	}); err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b merchantSize) int { return cmp.Compare(b.bytes, a.bytes) })
	s.total, s.largest, s.measured = total, slices.Clone(all[:min(len(all), largestMerchants)]), time.Now()
	return nil
}
