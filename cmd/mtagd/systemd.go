package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"mtagd/store"
)

// startWatchdog tells systemd that the service is ready, and runs a watchdog until stop is called. With forGood, stop tells
// systemd that the service is stopping. Nothing is sent unless systemd wants to know (Type=notify).
func startWatchdog(ready func() error, log *slog.Logger) (stop func(forGood bool), err error) {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return func(bool) {}, nil
	}
	send := func(state string) {
		if _, err := systemd.SdNotify(false, state); err != nil {
			log.Warn("systemd cannot be notified", "error", err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	stop = func(forGood bool) {
		cancel()
		if !forGood {
			send("STATUS=going on with the database")
			return
		}
		send(systemd.SdNotifyStopping + "\nSTATUS=stopping: requests in progress are finished")
	}
	timeout, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		return stop, fmt.Errorf("systemd's watchdog: %w", err)
	}
	send(systemd.SdNotifyReady)
	w := &watchdog{timeout: timeout, ready: ready, send: send}
	go w.watch(ctx) // stop does not wait for it, as ready may hang
	return stop, nil
}

// watchdog sends systemd a status and, as long as a restart would not help, keep-alive pings.
//
// A disk that is full or hangs is no reason to stop the pings. A restart does not help: the new process would need the same
// disk. So no commit is ever too slow for the watchdog: an alert is for that. The pings stop only when
//
//   - Ready hangs: it needs the lock of the journal's queue, but does no I/O
//   - Ready fails with store.ErrNeedsRestart: the index, or a change of the control data, has failed
//   - the whole process hangs
//
// Then systemd ends the process with SIGABRT, which prints all goroutines, and starts it again.
type watchdog struct {
	timeout time.Duration // systemd restarts the service after this time without a ping; 0: systemd does not watch it
	ready   func() error  // Engine.Ready
	send    func(state string)
}

const (
	// statusInterval is how old the status may be.
	statusInterval = 5 * time.Second

	// minUptime is how long a process keeps the pings up, even if a restart would help. So a service that restarts cannot
	// help goes on without accepting events, instead of restarting until systemd gives up.
	minUptime = 10 * time.Minute
)

func (w *watchdog) watch(ctx context.Context) {
	interval := statusInterval
	if w.timeout > 0 {
		interval = min(interval, w.timeout/3)
	}
	started, sent := time.Now(), ""
	for {
		err := w.ready()
		if ctx.Err() != nil {
			return
		}
		if status := statusOf(err); status != sent {
			w.send("STATUS=" + status)
			sent = status
		}
		restart := errors.Is(err, store.ErrNeedsRestart) && time.Since(started) >= minUptime
		if w.timeout > 0 && !restart {
			w.send(systemd.SdNotifyWatchdog)
		}
		if store.Sleep(ctx, interval) != nil {
			return
		}
	}
}

// statusOf is what "systemctl status" shows.
func statusOf(err error) string {
	if err != nil {
		return "no events are accepted: " + oneLine(err)
	}
	return "events are accepted"
}
