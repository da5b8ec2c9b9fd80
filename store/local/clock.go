package local

import (
	"sync"
	"time"
)

// clock numbers chunks and commits: microseconds since 1970, moved on where that would not grow.
type clock struct {
	now  func() time.Time
	mu   sync.Mutex
	last uint64
}

// next returns a number greater than every one before.
func (c *clock) next() uint64 {
	now := uint64(max(0, c.now().UnixMicro()))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = max(c.last+1, now)
	return c.last
}
