package store

import (
	"testing"
	"time"
)

// A session of a clock that was ahead is not valid after the clock was corrected, however late it ends.
func TestASessionOfAClockThatWasAhead(t *testing.T) {
	now := time.Date(2026, 11, 23, 8, 0, 0, 0, time.UTC)
	for ahead, want := range map[time.Duration]bool{0: true, time.Minute: true, time.Hour: false, 365 * 24 * time.Hour: false} {
		s, _ := NewSession(Key{ID: "a"}, now.Add(ahead))
		if got := s.Valid(now); got != want {
			t.Errorf("%v ahead: valid %v, want %v", ahead, got, want)
		}
	}
}
