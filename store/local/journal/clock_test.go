package journal

import (
	"testing"
	"time"
)

func TestClockNeverRepeatsOrGoesBack(t *testing.T) {
	now := time.UnixMicro(1000)
	c := &clock{now: func() time.Time { return now }, last: 500}
	for _, step := range []struct {
		now  int64
		want uint64
	}{{1000, 1000}, {1000, 1001}, {900, 1002}, {2000, 2000}} {
		now = time.UnixMicro(step.now)
		if got := c.next(); got != step.want {
			t.Errorf("at %d µs the clock gives %d, want %d", step.now, got, step.want)
		}
	}
}
