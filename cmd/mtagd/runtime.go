package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"time"
)

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
