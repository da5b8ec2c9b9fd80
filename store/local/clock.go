package local

import "time"

// clock numbers chunks and commits: microseconds since 1970, moved on where that would not grow. It is the committer's
// alone.
type clock struct {
	now  func() time.Time
	last uint64
}

// next returns a number greater than every one before.
func (c *clock) next() uint64 {
	now := uint64(max(0, c.now().UnixMicro()))
	c.last = max(c.last+1, now)
	return c.last
}
