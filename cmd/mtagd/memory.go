package main

import (
	"context"
	"os"
	"runtime/debug"
	"time"
)

// The heap's soft limit. Without one the collector lets garbage grow to the size of what lives, and Badger's
// compactions leave much; a limit that live data comes near would have it collect without end, so
// connections, of which there can be many, count on top.
const (
	memoryBase          = 400 << 20 // bytes
	memoryPerConnection = 48 << 10
	memoryInterval      = time.Second
)

// limitMemory keeps the limit in step with the open connections until ctx ends. GOMEMLIMIT takes
// precedence.
func limitMemory(ctx context.Context, connections func() int) {
	if os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetMemoryLimit(memoryBase)
	go func() {
		ticker := time.NewTicker(memoryInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				debug.SetMemoryLimit(memoryBase + int64(connections())*memoryPerConnection)
			}
		}
	}()
}
