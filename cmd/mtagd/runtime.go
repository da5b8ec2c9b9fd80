package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// timerSlack is how far the kernel may put off a thread's timers, so that fewer of them interrupt. While system calls
// block threads, as syncs do all the time, Go's monitor thread sleeps for 20 µs again and again; with the usual slack of 50 µs
// this is a tenth of the processor time of an event. What is timed here has milliseconds to spare.
const timerSlack = time.Millisecond

// relaxTimers starts the program once more in its own place, with that slack, unless it has it already. A thread gets its
// slack from the one that starts it, and Go starts the monitor thread before main.
func relaxTimers() error {
	runtime.LockOSThread() // the slack is this thread's, which goes on as the first of the new program
	defer runtime.UnlockOSThread()
	slack := func() (time.Duration, error) {
		ns, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
		return time.Duration(ns), err
	}
	if is, err := slack(); err != nil || is >= timerSlack {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0); err != nil {
		return err
	}
	if is, err := slack(); err != nil || is < timerSlack {
		return errors.Join(errors.New("the timer slack does not change"), err) // to start again would never end
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(program, os.Args, os.Environ())
}

// backgroundThreads is how many threads beyond the processors run Go code at once. Badger's flushes and compactions
// are goroutines that compute for tens of milliseconds, and Go takes a thread away from one after 10 ms only. With
// a thread to spare the kernel decides, and it lets a thread that answers requests go first.
const backgroundThreads = 1

// addThreads makes room for background work. GOMAXPROCS takes precedence.
func addThreads() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + backgroundThreads)
	}
}

// The heap's soft limit, in bytes. Without one the collector lets garbage grow to the size of what lives, and Badger's
// compactions leave much; a limit that live data comes near would have it collect without end. So it grows with
// the connections, of which there can be many.
const (
	memoryFloor         = 400 << 20
	memoryEngine        = 200 << 20 // the engine under full load, and room to collect
	memoryPerConnection = 36 << 10  // buffers, stack and a small request
	memoryInterval      = time.Second
)

// limitMemory keeps the limit in step with the open connections until ctx ends. GOMEMLIMIT takes
// precedence.
func limitMemory(ctx context.Context, connections func() int) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetMemoryLimit(memoryFloor)
	go func() {
		ticker := time.NewTicker(memoryInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				debug.SetMemoryLimit(max(memoryFloor, memoryEngine+int64(connections())*memoryPerConnection))
			}
		}
	}()
}
