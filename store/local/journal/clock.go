package journal

import "time"

// clock numbers chunks and commits. A number is the time in µs since 1970, or the last number plus one when that is
// greater. Only the committer's goroutine uses the clock.
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
