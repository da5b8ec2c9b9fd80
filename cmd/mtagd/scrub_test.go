package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
)

// The scrub waits 99 times as long as each read has taken. What it finds is in the log and in the metrics.
func TestTheScrubReadsForOnePercentOfTheTime(t *testing.T) {
	var log bytes.Buffer
	metrics := prometheus.NewRegistry()
	const reading = 3 * time.Millisecond
	s := newScrubber(func(ctx context.Context, v store.Verification) (store.Verified, error) {
		for range 5 {
			for began := time.Now(); time.Since(began) < reading; {
			}
			v.Read(store.PartEvents, 1, 2)
		}
		v.Found(store.Finding{Part: store.PartEvents, Where: "chunk 7", Problem: "is missing", Events: 12})
		return store.Verified{}, ctx.Err()
	}, metrics, slog.New(slog.NewTextHandler(&log, nil)))
	var waited []time.Duration
	s.wait = func(_ context.Context, d time.Duration) { waited = append(waited, d) }
	if err := s.pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(waited) != 5 {
		t.Errorf("it waits %d times, want after each of 5 reads", len(waited))
	}
	for _, d := range waited {
		if d < 99*reading {
			t.Errorf("it waits for %v after a read of %v", d, reading)
		}
	}
	if !strings.Contains(log.String(), `where="chunk 7"`) {
		t.Errorf("the log is %s", &log)
	}
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "mtagd_scrub_findings" && f.Metric[0].Gauge.GetValue() != 1 {
			t.Errorf("the metrics are %v", families)
		}
	}
	finished := s.finished.Load()
	if finished == 0 {
		t.Error("no time in the metrics")
	}

	// A pass that is cut off changes neither.
	s.verify = func(context.Context, store.Verification) (store.Verified, error) {
		return store.Verified{}, errors.New("cut off")
	}
	if err := s.pass(t.Context()); err == nil || s.findings.Load() != 1 || s.finished.Load() != finished {
		t.Errorf("after a pass that was cut off: %v, %d findings", err, s.findings.Load())
	}
}
