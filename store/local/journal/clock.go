package journal

import "time"

// clock numbers chunks and commits: by µs since 1970, and by the last number plus one where the time has not moved on.
// Only the committer's goroutine uses it.
type clock struct {
	now  func() time.Time
	last uint64
}

// next returns a number greater than every earlier one.
func (c *clock) next() uint64 {
	now := uint64(max(0, c.now().UnixMicro()))
	c.last = max(c.last+1, now)
	return c.last
}
