package main

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/partnerapi/console"
)

// rates remembers the counters of the last minutes, for operators without Prometheus. The counters have a registry of their
// own, because gathering all metrics costs much more.
type rates struct {
	counters *prometheus.Registry // requests to the front door, and refused ones

	mu      sync.Mutex
	samples []sample // oldest first
}

// sample is what was counted since the start.
type sample struct {
	at      time.Time
	events  uint64 // recorded
	refused map[string]uint64
}

const (
	sampleEvery = 10 * time.Second
	ratesOver   = 5 * time.Minute
)

func newRates() *rates { return &rates{counters: prometheus.NewRegistry()} }

// run takes samples until ctx ends.
func (r *rates) run(ctx context.Context) {
	ticker := time.NewTicker(sampleEvery)
	defer ticker.Stop()
	for at := time.Now(); ; {
		r.add(r.take(at))
		select {
		case <-ctx.Done():
			return
		case at = <-ticker.C:
		}
	}
}

// add adds a sample, and forgets those that are too old.
func (r *rates) add(s sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.samples = append(r.samples, s)
	for s.at.Sub(r.samples[0].at) > ratesOver {
		r.samples = r.samples[1:]
	}
}

// take reads the counters. What cannot be read is left out.
func (r *rates) take(at time.Time) sample {
	s := sample{at: at, refused: map[string]uint64{}}
	families, _ := r.counters.Gather()
	for _, family := range families {
		name := family.GetName()
		if name != "mtagd_events_total" && name != "mtagd_refused_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			n := uint64(metric.GetCounter().GetValue())
			for _, label := range metric.GetLabel() {
				switch {
				case label.GetName() == "outcome" && label.GetValue() == "recorded":
					s.events += n
				case label.GetName() == "cause":
					s.refused[label.GetValue()] += n
				}
			}
		}
	}
	return s
}

// since returns what was counted from the oldest sample to now.
func (r *rates) since(now time.Time) console.Rates {
	last := r.take(now)
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.samples) == 0 {
		return console.Rates{}
	}
	first := r.samples[0]
	shown := console.Rates{Over: last.at.Sub(first.at), Events: last.events - first.events, Refused: map[string]uint64{}}
	for cause, n := range last.refused {
		shown.Refused[cause] = n - first.refused[cause]
	}
	return shown
}
