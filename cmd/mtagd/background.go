package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/edge/limit"
	"mtagd/store"
)

// scrubber verifies the data all the time in the background, slowly: it reads for 1 % of the time. What it finds is logged.
// In a data directory, damaged events are noted and taken out of the index.
type scrubber struct {
	verify store.Verify
	shared store.Shared // with other nodes; nil: there are none
	log    *slog.Logger
	sleep  func(context.Context, time.Duration) error // store.Sleep

	findings atomic.Int64 // of the last complete pass
	finished atomic.Int64 // when it ended, in seconds since 1970; 0: none has
}

const (
	scrubShare    = 100       // one second in 100 is for reading
	scrubPause    = time.Hour // after a pass
	scrubMaxLog   = 20        // findings of one pass that are logged
	scrubMaxPause = time.Hour // between two reads, however long a read took
)

func newScrubber(verify store.Verify, shared store.Shared, metrics prometheus.Registerer, log *slog.Logger) *scrubber {
	s := &scrubber{verify: verify, shared: shared, log: log, sleep: store.Sleep}
	exportGauge(metrics, "mtagd_scrub_last_finished_timestamp_seconds",
		"When the last complete verification of all data in the background ended; 0 before the first. With --store, that of any node.",
		func() float64 { return float64(s.finished.Load()) })
	exportGauge(metrics, "mtagd_scrub_findings", "What the last complete verification in the background, or the running one, has found wrong.",
		func() float64 { return float64(s.findings.Load()) })
	return s
}

// scrubbed is the result of the last complete pass, in a file that all nodes share. It ended when the file was written.
type scrubbed struct {
	Findings int64 `json:"findings"`
}

const (
	scrubFile = "scrub/last"
	scrubLook = time.Minute // between two looks at the file, and whether a pass is due
)

// turn verifies all data once, if that is due and no other node does.
func (s *scrubber) turn(ctx context.Context) (err error) {
	if due, err := s.readLast(ctx); err != nil || !due {
		return err
	}
	lease, err := s.shared.Lease(ctx, scrubFile)
	if err != nil || lease == nil {
		return err
	}
	defer func() { err = errors.Join(err, lease.Release(context.WithoutCancel(ctx))) }()
	if due, err := s.readLast(ctx); err != nil || !due { // another node has just ended
		return err
	}
	held, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(lease.Held(), cancel)()
	if err := s.pass(held); err != nil {
		return err
	}
	text, err := json.Marshal(scrubbed{s.findings.Load()})
	if err != nil {
		return err
	}
	return s.shared.PutFile(ctx, scrubFile, text)
}

// readLast reads the result of the last pass of any node, and reports whether another one is due.
func (s *scrubber) readLast(ctx context.Context) (due bool, err error) {
	files, err := s.shared.Files(ctx, scrubFile, true)
	if err != nil || len(files) == 0 {
		return err == nil, err
	}
	var last scrubbed
	if err := json.Unmarshal(files[0].Content, &last); err != nil {
		return false, fmt.Errorf("read the result of the last verification: %w", err)
	}
	s.finished.Store(files[0].Modified.Unix())
	s.findings.Store(last.Findings)
	return files[0].Age > scrubPause, nil
}

// run verifies until ctx ends. Of nodes that share a database, one verifies at a time, and all know the result.
func (s *scrubber) run(ctx context.Context) {
	verify, pause := s.pass, scrubPause
	if s.shared != nil {
		verify, pause = s.turn, scrubLook
	}
	for ctx.Err() == nil {
		wait := pause
		if err := verify(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("the data was not verified to the end", "error", err)
			wait = scrubPause
		}
		_ = s.sleep(ctx, wait) // the loop ends with ctx
	}
}

func (s *scrubber) pass(ctx context.Context) error {
	found := int64(0)
	began := time.Now()
	_, err := s.verify(ctx, store.Verification{
		Found: func(f store.Finding) {
			found++
			s.findings.Store(max(found, s.findings.Load()))
			if found <= scrubMaxLog {
				s.log.Error("damage was found in the data", "part", f.Part, "where", f.Where, "problem", f.Problem,
					"events", f.Events, "merchants", f.Merchants, "from", f.From, "to", f.To)
			}
		},
		Read: func(store.Part, uint64, uint64) {
			_ = s.sleep(ctx, min(scrubMaxPause, (scrubShare-1)*time.Since(began)))
			began = time.Now()
		},
	})
	if err != nil {
		return err
	}
	s.findings.Store(found)
	s.finished.Store(time.Now().Unix())
	return nil
}

// seedFile has the seed by which all nodes know the buckets of limits.
const seedFile = "limits/seed"

// shareLimits makes limits hold over all nodes of a database.
func (d *daemon) shareLimits(ctx context.Context) error {
	shared := sharedOf(d.engine)
	if shared == nil || !d.hasLimits() {
		return nil
	}
	var seed limit.Seed
	if err := d.awaitDatabase(ctx, func() (err error) {
		seed, err = sharedSeed(ctx, shared)
		return err
	}); err != nil {
		return fmt.Errorf("read the seed of the limits over all nodes: %w", err)
	}
	d.nodes = limit.NewExchange(seed, time.Now)
	d.inBackground(func(ctx context.Context) { d.nodes.Run(ctx, shared.Exchange, d.Log) })
	return nil
}

// sharedSeed returns the seed of all nodes. The first node draws it.
func sharedSeed(ctx context.Context, shared store.Shared) (seed limit.Seed, err error) {
	for {
		files, err := shared.Files(ctx, seedFile, true)
		if err != nil {
			return seed, err
		}
		if len(files) > 0 {
			text := files[0].Content
			if len(text) != 16 {
				return seed, fmt.Errorf("the file %s in the database has %d bytes, want 16", seedFile, len(text))
			}
			return limit.Seed{binary.BigEndian.Uint64(text), binary.BigEndian.Uint64(text[8:])}, nil
		}
		if err := drawSeed(ctx, shared); err != nil {
			return seed, err
		}
	}
}

// drawSeed stores a seed unless there is one. While another node does, it waits a little.
func drawSeed(ctx context.Context, shared store.Shared) (err error) {
	lease, err := shared.Lease(ctx, seedFile)
	if err != nil {
		return err
	}
	if lease == nil {
		return store.Sleep(ctx, 100*time.Millisecond)
	}
	defer func() { err = errors.Join(err, lease.Release(context.WithoutCancel(ctx))) }()
	if files, err := shared.Files(ctx, seedFile, false); err != nil || len(files) > 0 {
		return err
	}
	var text [16]byte
	_, _ = rand.Read(text[:]) // never fails
	return shared.PutFile(ctx, seedFile, text[:])
}

// checkDomains warns of domains that could not be claimed today, because they were claimed in an earlier version or under
// other flags. They go on as before: only an operator can decide to end them.
func checkDomains(ctx context.Context, control store.Control, claimable store.Claimable, log *slog.Logger) error {
	partners, err := control.Partners(ctx)
	if err != nil {
		return err
	}
	claims, err := control.Claims(ctx, "")
	if err != nil {
		return err
	}
	check := func(domain, message string, args ...any) {
		if err := claimable.Check("domain", domain); err != nil {
			log.Warn(message, append(args, "domain", domain, "error", err)...)
		}
	}
	for _, p := range partners {
		if p.PreverifiedEnabled() {
			check(p.TrackingDomain, `a tracking domain could not be set today; move it with "mtagd partner preverify"`, "partner", p.ID)
		}
	}
	for _, c := range claims {
		check(c.Domain, `a domain could not be registered today; release it with "mtagd domain release"`, "partner", c.Partner, "tag", c.Tag)
	}
	return nil
}
