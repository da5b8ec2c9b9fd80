package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"mtagd/store/local/backup"
)

// emptySource is an empty data directory.
type emptySource struct{ clock time.Duration } // how far its clock is ahead

func (emptySource) ID(context.Context) (string, error) { return "data", nil }

func (s emptySource) Stream(_ context.Context, _ backup.Request, to io.Writer) error {
	w := backup.NewWriter(to)
	return errors.Join(w.Header(backup.Header{Time: time.Now().Add(s.clock), Version: 1}), w.End())
}

// hanging is a destination that does not answer until it is told to.
type hanging struct {
	backup.Destination
	answer chan struct{}
}

func (d hanging) List(ctx context.Context, prefix string) ([]backup.Stored, error) {
	<-d.answer
	return d.Destination.List(ctx, prefix)
}

func newTestSchedule(to backup.Destination) (*schedule, *prometheus.Registry) {
	metrics := prometheus.NewRegistry()
	cfg := backupConfig{To: to, Every: time.Hour, Keep: 24 * time.Hour}
	return newSchedule(cfg, emptySource{}, metrics, slog.New(slog.DiscardHandler)), metrics
}

// failures returns how many backups have failed.
func failures(t *testing.T, metrics *prometheus.Registry) float64 {
	t.Helper()
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == "mtagd_backup_failures_total" {
			return family.GetMetric()[0].GetCounter().GetValue()
		}
	}
	t.Fatal("failures are not counted")
	return 0
}

// The service stops although the destination of its backups hangs.
func TestAHangingDestinationDoesNotHoldTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, err := backup.Open(t.TempDir(), false)
		if err != nil {
			t.Fatal(err)
		}
		d := hanging{to, make(chan struct{})}
		s, _ := newTestSchedule(d)
		stop := s.runInBackground(t.Context())
		synctest.Wait()
		started := time.Now()
		stop()
		if took := time.Since(started); took != stopBackup {
			t.Errorf("the stop took %s", took)
		}
		close(d.answer)
	})
}

// A point whose time is in the future does not stop the schedule.
func TestAPointOfTheFutureDoesNotStopTheSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, err := backup.Open(t.TempDir(), false)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := backup.New(to, emptySource{clock: 10 * 365 * 24 * time.Hour}).Run(t.Context(),
			backup.Options{Log: slog.New(slog.DiscardHandler), Now: time.Now}); err != nil {
			t.Fatal(err)
		}
		s, _ := newTestSchedule(to)
		stop := s.runInBackground(t.Context())
		time.Sleep(time.Hour + time.Minute)
		synctest.Wait()
		stop()
		if points, err := backup.Points(t.Context(), to); len(points) != 2 || err != nil {
			t.Errorf("there are %d points, %v", len(points), err)
		}
	})
}

// busySource is a data directory in which something is committed just after each stream has begun.
type busySource struct {
	emptySource
	version   uint64
	committed time.Time // the first commit that is in no stream yet
}

func (s *busySource) Stream(_ context.Context, _ backup.Request, to io.Writer) error {
	w := backup.NewWriter(to)
	h := backup.Header{Time: time.Now(), Version: s.version}
	s.version++
	return errors.Join(w.Header(h), w.End())
}

// slow is a destination that needs a while for each object. It measures how old the oldest commit of a point is when that
// is there.
type slow struct {
	backup.Destination
	src    *busySource
	oldest *time.Duration
}

func (d slow) Put(ctx context.Context, name string, content []byte) error {
	time.Sleep(400 * time.Millisecond)
	if !d.src.committed.IsZero() {
		*d.oldest = max(*d.oldest, time.Since(d.src.committed))
	}
	d.src.committed = time.Now().Add(-400 * time.Millisecond) // when the stream began
	return d.Destination.Put(ctx, name, content)
}

// With a backup every 5 seconds, no commit is older than that when it is in a point, although a point takes a while.
func TestNoCommitIsOlderThanTheInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to, err := backup.Open(t.TempDir(), false)
		if err != nil {
			t.Fatal(err)
		}
		src, oldest := &busySource{version: 1}, time.Duration(0)
		s, _ := newTestSchedule(to)
		s.Every = 5 * time.Second
		s.backup = backup.New(slow{to, src, &oldest}, src)
		stop := s.runInBackground(t.Context())
		time.Sleep(time.Minute)
		synctest.Wait()
		stop()
		if oldest > s.Every || oldest < s.Every/2 {
			t.Errorf("a commit was %s old when it was in a point", oldest)
		}
	})
}

// A disk that is not mounted is a failure of each backup. When it is there, backups succeed.
func TestAScheduleWaitsForItsDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir() + "/disk"
		to, err := backup.Open(dir, false)
		if err != nil {
			t.Fatal(err)
		}
		s, metrics := newTestSchedule(to)
		stop := s.runInBackground(t.Context())
		time.Sleep(2*retryBackup + time.Minute)
		synctest.Wait()
		if n := failures(t, metrics); n != 3 {
			t.Errorf("%v failures were counted, want 3", n)
		}
		if shown := s.view(); shown.Failures != 3 || shown.Error == "" || time.Since(shown.Failed) > retryBackup || !shown.Last.IsZero() {
			t.Errorf("operators see %+v", shown)
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(retryBackup)
		synctest.Wait()
		if shown := s.view(); shown.Failures != 3 || shown.Error != "" || shown.Last.IsZero() {
			t.Errorf("then operators see %+v", shown)
		}
		stop()
		if points, err := backup.Points(t.Context(), to); len(points) != 1 || err != nil {
			t.Errorf("there are %d points, %v", len(points), err)
		}
	})
}
