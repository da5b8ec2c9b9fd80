package operator

import (
	"testing"
	"time"
)

func TestParseLifetime(t *testing.T) {
	for _, c := range []struct {
		text string
		want time.Duration // 0: refused
	}{
		{"30d", 720 * time.Hour},
		{"1d", 24 * time.Hour},
		{"+5d", 120 * time.Hour},
		{"106751d", 106751 * 24 * time.Hour},
		{"90m", 90 * time.Minute},
		{"720h", 720 * time.Hour},
		{"1h30m", 90 * time.Minute},
		{"106752d", 0}, // beyond time.Duration
		{"9223372036854775808d", 0},
		{"1.5d", 0},
		{"1d12h", 0},
		{"0d", 0},
		{"-1d", 0},
		{"0s", 0},
		{"-1h", 0},
		{"30", 0},
		{"d", 0},
		{"", 0},
	} {
		if got, err := ParseLifetime(c.text); got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%q: %v, %v, want %v", c.text, got, err, c.want)
		}
	}
}
