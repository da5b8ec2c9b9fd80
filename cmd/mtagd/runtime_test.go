package main

import (
	"runtime"
	"testing"
)

// Live data near the limit would keep the collector busy all the time.
func TestTheMemoryLimitStaysAboveTheLiveData(t *testing.T) {
	const size = 320 << 20
	live := make([]byte, size)
	runtime.GC()
	if limit := memoryLimit(0); limit < size*3/2 {
		t.Errorf("a limit of %d MiB for %d MiB of live data", limit>>20, size>>20)
	}
	runtime.KeepAlive(live)
}
