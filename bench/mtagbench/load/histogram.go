package load

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Histogram counts latencies in microseconds, exact to three digits. Those above a minute count as a minute.
type Histogram struct{ counts *hdrhistogram.Histogram }

const longestLatency = time.Minute

// NewHistogram makes an empty histogram.
func NewHistogram() *Histogram {
	return &Histogram{hdrhistogram.New(1, longestLatency.Microseconds(), 3)}
}

// Record adds a latency.
func (h *Histogram) Record(d time.Duration) {
	_ = h.counts.RecordValue(min(max(d, time.Microsecond), longestLatency).Microseconds()) // always in range
}

// At is a percentile, 0 to 100.
func (h *Histogram) At(percentile float64) time.Duration {
	return time.Duration(h.counts.ValueAtQuantile(percentile)) * time.Microsecond
}

// Max is the longest latency.
func (h *Histogram) Max() time.Duration { return time.Duration(h.counts.Max()) * time.Microsecond }

// Count is the number of latencies.
func (h *Histogram) Count() int64 { return h.counts.TotalCount() }

// Add adds the latencies of another histogram.
func (h *Histogram) Add(other *Histogram) { h.counts.Merge(other.counts) }
