package main

import (
	"context"
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	gometrics "runtime/metrics"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"mtagd/store"
)

// timerSlack is how long the kernel may delay a thread's timers to combine their interrupts. Whenever a system call
// blocks a thread, as each sync does, Go's monitor thread sleeps in steps of 20 µs. With the default slack of 50 µs
// these wake-ups cost a tenth of an event's processor time. No timer here needs less than a millisecond.
const timerSlack = time.Millisecond

// relaxTimers sets that slack for all threads, unless they have it already. A thread inherits its slack from the thread
// that starts it, and Go starts the monitor thread before main. So relaxTimers sets the slack of its own thread, and
// then executes the program again in the same process.
func relaxTimers() error {
	runtime.LockOSThread() // the slack belongs to this thread, which becomes the first thread of the new program
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
		return errors.Join(errors.New("the timer slack does not change"), err) // without this check, the program would execute itself forever
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(program, os.Args, os.Environ())
}

// backgroundThreads is how many more threads than processors run Go code at the same time. Badger's flushes and
// compactions compute for tens of milliseconds, and Go preempts a goroutine only after 10 ms. With an extra thread the
// kernel schedules them, and it prefers the threads that answer requests.
const backgroundThreads = 1

// addThreads adds the threads for background work, unless GOMAXPROCS is set.
func addThreads() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + backgroundThreads)
	}
}

// The heap's soft limit, in bytes. Without a limit, the collector lets garbage grow to the size of the live data, and
// Badger's compactions produce a lot. If the live data came close to the limit, the collector would run all the time.
// So the limit grows with the number of connections, which may be large.
const (
	memoryFloor         = 400 << 20
	memoryEngine        = 200 << 20 // the engine under full load, and room for garbage
	memoryPerConnection = 36 << 10  // buffers, stack and a small request
	memoryInterval      = time.Second
)

// memoryLimit returns the soft limit. It is at least 1.5 times the live data, because lists of events, bodies and a large
// directory may need more than the constants provide for.
func memoryLimit(connections int) int64 {
	live := []gometrics.Sample{{Name: "/gc/heap/live:bytes"}} // when the collector last ran
	gometrics.Read(live)
	return max(memoryFloor, memoryEngine+int64(connections)*memoryPerConnection, int64(live[0].Value.Uint64())*3/2)
}

// garbagePercent is how much garbage may grow before the collector runs, in percent of the live data. Go's default of 100
// would save one percent of the processor time, and take 100 MB more.
const garbagePercent = 50

// limitMemory keeps the limit at memoryLimit until ctx ends, unless GOMEMLIMIT is set.
func limitMemory(ctx context.Context, connections func() int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetMemoryLimit(memoryLimit(0))
	go func() {
		for store.Sleep(ctx, memoryInterval) == nil {
			debug.SetMemoryLimit(memoryLimit(connections()))
		}
	}()
}

// yieldToOthers gives this process the lowest priority for processors and disks. Each thread has one; new ones inherit it.
func yieldToOthers() error {
	const (
		ioprioWhoProcess = 1
		ioprioIdle       = 3 << 13
	)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			return err
		}
		if err := unix.Setpriority(unix.PRIO_PROCESS, id, 19); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		// A system that does not let this process choose goes on with the priority that follows from the other one.
		_, _, _ = unix.Syscall(unix.SYS_IOPRIO_SET, ioprioWhoProcess, uintptr(id), ioprioIdle)
	}
	return nil
}
