package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store"
	"mtagd/store/local"
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
	}, nil, metrics, slog.New(slog.NewTextHandler(&log, nil)))
	var waited []time.Duration
	s.sleep = func(_ context.Context, d time.Duration) error {
		waited = append(waited, d)
		return nil
	}
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

// databaseTime is when all files were written, by the database's clock, which is far from that of the nodes (seconds since
// 1970).
const databaseTime = 1_000_000_000

// sharedFiles is what two nodes share, in memory.
type sharedFiles struct {
	store.Shared
	content map[string][]byte
	age     time.Duration // of the files, by the clock of the database
	leased  bool
}

func (s *sharedFiles) Files(_ context.Context, path string, _ bool) ([]store.File, error) {
	if content, ok := s.content[path]; ok {
		return []store.File{{Path: path, Content: content, Modified: time.Unix(databaseTime, 0), Age: s.age}}, nil
	}
	return nil, nil
}

func (s *sharedFiles) PutFile(_ context.Context, path string, content []byte) error {
	s.content[path], s.age = content, 0
	return nil
}

func (s *sharedFiles) Lease(ctx context.Context, _ string) (store.Lease, error) {
	if s.leased {
		return nil, nil
	}
	s.leased = true
	held, cancel := context.WithCancel(ctx)
	return &leaseInMemory{s, held, cancel}, nil
}

type leaseInMemory struct {
	s      *sharedFiles
	held   context.Context
	cancel context.CancelFunc
}

func (l *leaseInMemory) Held() context.Context       { return l.held }
func (l *leaseInMemory) Renew(context.Context) error { return nil }
func (l *leaseInMemory) Release(context.Context) error {
	l.s.leased = false
	l.cancel()
	return nil
}

// Of two nodes one verifies, and both show the result. The other goes on when the first has lost its lease.
func TestOneNodeAtATimeScrubs(t *testing.T) {
	shared := &sharedFiles{content: map[string][]byte{}}
	quiet := slog.New(slog.DiscardHandler)
	passes := 0
	during := func() {}
	verify := func(ctx context.Context, v store.Verification) (store.Verified, error) {
		passes++
		during()
		if ctx.Err() == nil {
			v.Found(store.Finding{Part: store.PartEvents})
		}
		return store.Verified{}, ctx.Err()
	}
	var nodes [2]*scrubber
	for i := range nodes {
		nodes[i] = newScrubber(verify, shared, prometheus.NewRegistry(), quiet)
	}
	during = func() {
		if err := nodes[1].turn(t.Context()); err != nil || passes != 1 {
			t.Errorf("while a node verifies, %d do, %v", passes, err)
		}
	}
	for _, s := range nodes {
		if err := s.turn(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.findings.Load() != 1 || s.finished.Load() == 0 {
			t.Errorf("the metrics have %d findings, finished at %d", s.findings.Load(), s.finished.Load())
		}
	}
	if passes != 1 || shared.leased {
		t.Errorf("%d passes within an hour", passes)
	}

	shared.age = 2 * time.Hour
	during = func() {
		lost, _ := shared.Lease(t.Context(), scrubFile)
		if lost != nil {
			t.Error("there is no lease during a pass")
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := nodes[0].turn(ended); err == nil {
		t.Error("a pass that was cut off counts as complete")
	}
	during = func() {}
	if err := nodes[1].turn(t.Context()); err != nil || nodes[1].findings.Load() != 1 || passes != 3 {
		t.Errorf("the other node does not verify: %v, %d findings", err, nodes[1].findings.Load())
	}
	for _, s := range nodes {
		if _, err := s.readLast(t.Context()); err != nil || s.findings.Load() != 1 || s.finished.Load() != databaseTime {
			t.Errorf("a node shows %d findings, finished at %d, %v", s.findings.Load(), s.finished.Load(), err)
		}
	}
}

// A domain of an earlier version or of other flags, which could not be claimed today, is a warning at the start.
func TestServeWarnsOfDomainsThatCannotBeClaimed(t *testing.T) {
	data := t.TempDir()
	control, err := local.OpenControl(data, local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := control.AddPartner(t.Context(), "Agency")
	if err != nil {
		t.Fatal(err)
	}
	for _, domain := range []string{"shoes.test", "mtagd.test", "hats.com"} {
		m, err := control.AddMerchant(t.Context(), p.ID, store.NewMerchant{Name: "Shop"})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := control.GenerateTag(t.Context(), m.ID, store.ServerSide, domain); err != nil {
			t.Fatal(err)
		}
	}
	// Without a server, the command does not know the service's hosts.
	if err := control.Close(); err != nil {
		t.Fatal(err)
	}
	if err := runMtagd(nil, "partner", "preverify", string(p.ID), "--domain", "t.agency.invalid", "--data", data); err != nil {
		t.Fatal(err)
	}

	s, err := startService(data, "127.0.0.1:1")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"msg":"a domain could not be registered today; release it with \"mtagd domain release\"","partner":"` + string(p.ID) + `"`,
		`"domain":"shoes.test","error":"domain must have a public top-level domain`,
		`"domain":"mtagd.test","error":"domain must not be on mtagd.test`,
		`"domain":"t.agency.invalid","error":"domain must have a public top-level domain`,
	} {
		if err := s.waitLog(want); err != nil {
			t.Error(err)
		}
	}
	resp, err := http.Get("http://" + s.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	metrics, err := io.ReadAll(resp.Body)
	if err != nil || !strings.Contains(string(metrics), "\nmtagd_labels_used 3\n") {
		t.Errorf("%v: no 3 labels in the metrics: %s", err, metrics)
	}
	if strings.Contains(s.Log(), "hats.com") {
		t.Errorf("a warning of a domain that can be claimed: %s", s.Log())
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
}
