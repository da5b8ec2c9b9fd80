package main

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/edge/limit"
)

func TestRates(t *testing.T) {
	r := newRates()
	events := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mtagd_events_total"}, []string{"outcome"})
	r.counters.MustRegister(events)
	refusals := limit.NewRefusals(slog.New(slog.DiscardHandler), r.counters)
	start := time.Date(2026, 11, 20, 8, 30, 0, 0, time.UTC)
	if got := r.since(start); got.Over != 0 || got.Events != 0 {
		t.Errorf("before the first sample: %+v", got)
	}
	events.WithLabelValues("recorded").Add(1000) // before the time that is shown
	at := start
	for i := range 60 { // ten minutes
		at = start.Add(time.Duration(i) * sampleEvery)
		r.add(r.take(at))
		events.WithLabelValues("recorded").Add(20)
		events.WithLabelValues("duplicate").Inc()
		refusals.Count(limit.Malformed, limit.Tenant{})
		refusals.Count(limit.MerchantEvents, limit.Merchant("m"))
	}
	got := r.since(at.Add(sampleEvery))
	if got.Over != ratesOver+sampleEvery || got.Events != 31*20 {
		t.Errorf("%d events in %v", got.Events, got.Over)
	}
	if got.Refused["malformed"] != 31 || got.Refused["merchant_events"] != 31 || got.Refused["suspended"] != 0 {
		t.Errorf("refused: %v", got.Refused)
	}
	if n := len(r.samples); n != 31 {
		t.Errorf("%d samples are kept", n)
	}
}
