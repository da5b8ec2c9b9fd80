package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"mtagd/edge/limit"
	"mtagd/store"
)

// lockedText is written by timers and read by the test.
type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (b *lockedText) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// take returns what was written since its last call.
func (b *lockedText) take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.text.Reset()
	return b.text.String()
}

func TestALogDropsRepeatedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text lockedText
		log := slog.New(throttle(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug})))
		lines := func() int {
			synctest.Wait()
			return strings.Count(text.take(), "\n")
		}
		for i := range 100 {
			log.With("request", i).Error("engine failed")
			log.Debug("request")
			log.Info("client failed", "on", i)
			store.LogAudit(log, []store.AuditEntry{{}})
		}
		if got := lines(); got != 50+100+50+100 {
			t.Errorf("%d lines, want 50 errors, 100 for debugging, 50 others and 100 audit entries", got)
		}
		time.Sleep(throttleInterval)
		synctest.Wait()
		dropped := text.take()
		for _, message := range []string{"engine failed", "client failed"} {
			if want := fmt.Sprintf("message=%q dropped=50", message); strings.Count(dropped, want) != 1 {
				t.Errorf("no line with %s: %s", want, dropped)
			}
		}
		time.Sleep(2 * throttleInterval)
		if got := lines(); got != 0 {
			t.Errorf("%d lines without a message, want none", got)
		}
		log.Error("engine failed")
		if got := lines(); got != 1 {
			t.Errorf("%d lines in a later minute, want 1", got)
		}
	})
}

// A flood of one cause must not hide the first refusal of another.
func TestALogHasTheRefusalsOfEveryCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text lockedText
		refusals := limit.NewRefusals(slog.New(throttle(slog.NewTextHandler(&text, nil))), nil)
		count := func(when string) {
			t.Helper()
			synctest.Wait()
			log := text.take()
			for c := range limit.Malformed + 1 {
				if !strings.Contains(log, "cause="+c.String()+" ") {
					t.Errorf("%s: no line with the cause %s", when, c)
				}
			}
		}
		for c := range limit.Malformed + 1 {
			refusals.Count(c, limit.Tenant{})
			refusals.Count(c, limit.Tenant{})
		}
		count("at once")
		time.Sleep(throttleInterval)
		count("after a minute")
	})
}

func TestTheMemoryOfALogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := throttle(slog.DiscardHandler).(throttled)
		log := slog.New(enabled{h})
		counted := func() int {
			h.mu.Lock()
			defer h.mu.Unlock()
			return len(h.lines)
		}
		for i := range 10 * maxMessages {
			log.Warn(fmt.Sprint("badger: ", i))
		}
		if got := counted(); got != maxMessages+1 {
			t.Errorf("%d messages are counted, want %d", got, maxMessages+1)
		}
		time.Sleep(throttleInterval)
		synctest.Wait()
		if got := counted(); got != 0 {
			t.Errorf("after a minute %d messages are counted", got)
		}
	})
}

// enabled is a handler that is enabled although it discards.
type enabled struct{ throttled }

func (enabled) Enabled(context.Context, slog.Level) bool { return true }
