package main

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"mtagd/partnerapi/console"
	"mtagd/store"
	"mtagd/store/local/backup"
)

// continuousBelow is the interval below which backups are continuous: each ships what the last commits have written, if any.
const continuousBelow = time.Minute

// retryBackup is how long a schedule waits after a failure, unless its interval is shorter.
const retryBackup = 5 * time.Minute

type schedule struct {
	backupConfig
	backup *backup.Backup
	log    *slog.Logger

	last     prometheus.Gauge
	duration prometheus.Gauge
	bytes    prometheus.Gauge
	shipped  prometheus.Counter
	failures prometheus.Counter

	mu    sync.Mutex
	shown console.Backup // what operators see

	folded bool          // the first point of this process was made
	took   time.Duration // by the last point
}

func newSchedule(cfg backupConfig, src backup.Source, metrics *prometheus.Registry, log *slog.Logger) *schedule {
	registered := promauto.With(metrics)
	gauge := func(name, help string) prometheus.Gauge {
		return registered.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return registered.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge("mtagd_backup_interval_seconds", "How often a backup is made (--backup-every).").Set(cfg.Every.Seconds())
	return &schedule{
		backupConfig: cfg, shown: console.Backup{Every: cfg.Every}, log: log, backup: backup.New(cfg.To, src),
		last:     gauge("mtagd_backup_last_success_timestamp_seconds", "When the last backup that succeeded began; 0 when there is none."),
		duration: gauge("mtagd_backup_duration_seconds", "How long the last backup that succeeded took."),
		bytes:    gauge("mtagd_backup_bytes", "Bytes that the last backup that succeeded has added to its destination."),
		shipped:  counter("mtagd_backup_bytes_total", "Bytes that backups have added to their destination."),
		failures: counter("mtagd_backup_failures_total", "Backups that have failed; the log says why."),
	}
}

// run backs up until ctx ends. The first backup is due when the newest point is older than the interval.
func (s *schedule) run(ctx context.Context) {
	wait := time.Duration(0)
	newest, err := s.backup.Newest(ctx)
	if err != nil {
		s.log.Warn("backup: the destination cannot be read", "to", s.To.String(), "error", err)
	}
	if !newest.IsZero() {
		s.succeeded(newest)
		wait = min(time.Until(newest.Add(s.Every)), s.Every) // its time is in the future when a clock was wrong
	}
	for store.Sleep(ctx, wait) == nil && ctx.Err() == nil {
		started := time.Now()
		err := s.once(ctx, started)
		if ctx.Err() != nil {
			return
		}
		wait = time.Until(started.Add(s.pause()))
		if err != nil {
			s.failed(started, err)
			s.log.Error("backup failed", "to", s.To.String(), "error", err)
			wait = min(s.Every, retryBackup)
		}
	}
}

// pause is the time from the beginning of a backup to the beginning of the next one. A continuous backup begins early enough
// to be complete when the oldest commit that the one before did not take is as old as Every.
func (s *schedule) pause() time.Duration {
	if s.Every >= continuousBelow {
		return s.Every
	}
	return s.Every - min(max(2*s.took, s.Every/10), s.Every/2)
}

func (s *schedule) once(ctx context.Context, started time.Time) error {
	result, err := s.backup.Run(ctx, backup.Options{
		Certificates: s.Certificates, Recipients: s.Recipients, Keep: s.Keep,
		Small: s.Every < continuousBelow, Fold: !s.folded,
		Log: s.log, Now: time.Now,
	})
	if result.Point == nil {
		return err
	}
	took := time.Since(started)
	s.folded = true
	s.succeeded(started)
	s.duration.Set(took.Seconds())
	if result.Nothing {
		s.bytes.Set(0)
		return err
	}
	s.took = took
	m := result.Point
	s.bytes.Set(float64(m.Written()))
	s.shipped.Add(float64(m.Written()))
	level := slog.LevelInfo
	if m.Small {
		level = slog.LevelDebug // one every few seconds
	}
	shown := shownPoint(m, result.Why)
	s.log.Log(ctx, level, "backed up", "to", s.To.String(), "point", m.Point, "kind", shown.Kind, "why", shown.Why,
		"events", m.Count.Events, "bytes", m.Written(), "removed", result.Removed, "took", took.Round(time.Millisecond))
	if n := len(m.Count.Damaged); n > 0 {
		err = errors.Join(err, errors.New("damaged chunks of events are not in the backup: run mtagd verify"))
	}
	return err
}

// stopBackup is how long the stop of the service waits for the destination.
const stopBackup = 5 * time.Second

// runInBackground runs the schedule; stop ends it. A destination that hangs is left behind: after an interrupt, a backup
// reads nothing more of the data directory, and makes no point.
func (s *schedule) runInBackground(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.run(ctx)
	}()
	return func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(stopBackup):
			s.log.Warn("backup: the destination does not answer, and the service stops without it", "to", s.To.String())
		}
	}
}

func (s *schedule) succeeded(at time.Time) {
	s.last.Set(float64(at.UnixMilli()) / 1e3)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown.Last, s.shown.Error = at, ""
}

func (s *schedule) failed(at time.Time, err error) {
	s.failures.Inc()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shown.Failed, s.shown.Error = at, oneLine(err)
	s.shown.Failures++
}

func (s *schedule) view() *console.Backup {
	s.mu.Lock()
	defer s.mu.Unlock()
	shown := s.shown
	return &shown
}
