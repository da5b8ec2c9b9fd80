package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	systemd "github.com/coreos/go-systemd/v22/daemon"

	"mtagd/store"
)

// tellSystemd tells systemd that the service answers, and from then on whether it accepts events. It does nothing when
// systemd does not want to know (Type=notify). The last message, STOPPING=1, is sent before the service stops anything.
func (d *daemon) tellSystemd(context.Context) error {
	if os.Getenv("NOTIFY_SOCKET") == "" {
		return nil
	}
	timeout, err := systemd.SdWatchdogEnabled(false)
	if err != nil {
		return fmt.Errorf("systemd's watchdog: %w", err)
	}
	w := &watchdog{
		timeout: timeout,
		ready:   d.engine.Ready,
		send: func(state string) {
			if _, err := systemd.SdNotify(false, state); err != nil {
				d.Log.Warn("systemd cannot be told how the service is", "error", err)
			}
		},
	}
	w.send(systemd.SdNotifyReady)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { w.run(ctx) })
	d.onStop(func() error {
		cancel()
		w.send(systemd.SdNotifyStopping + "\nSTATUS=stopping: requests in progress are finished")
		return nil // without waiting: Ready may hang
	})
	return nil
}

// watchdog sends systemd a status and, as long as a restart would not help, keep-alive pings.
//
// A disk that is full or hangs is no reason to stop the pings. A restart does not help against it, and the new process
// would have to open its files on the same disk. So no commit is ever too slow for the watchdog: an alert is for that. The
// pings stop only when
//
//   - Ready hangs: it needs the lock of the journal's queue, but does no I/O
//   - Ready fails with store.ErrNeedsRestart: the committer does not take requests, or the index has failed
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

	// minUptime is how long the process must have run before it has itself restarted. When a restart does not help, the
	// service runs on without accepting events, instead of restarting until systemd gives up.
	minUptime = 10 * time.Minute
)

func (w *watchdog) run(ctx context.Context) {
	interval := statusInterval
	if w.timeout > 0 {
		interval = min(interval, w.timeout/3)
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
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
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
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
