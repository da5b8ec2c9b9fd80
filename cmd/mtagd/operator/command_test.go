package operator

import (
	"testing"
	"time"

	"mtagd/store"
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

func TestParseSize(t *testing.T) {
	for _, c := range []struct {
		text string
		want store.Limit // 0: refused
	}{
		{"64MiB", 64 << 20},
		{"1.5GiB", 3 << 29},
		{"10 GB", 10_000_000_000},
		{"100b", 100},
		{"64", 0}, // no unit
		{"1,5GiB", 0},
		{"1,000MB", 0},
		{"0MiB", 0},
		{"0.1B", 0},
		{"-1MiB", 0},
		{"8EiB", 0}, // beyond int64
		{"GiB", 0},
		{"many", 0},
		{"", 0},
	} {
		if got, err := parseSize(c.text); got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%q: %v, %v, want %v", c.text, got, err, c.want)
		}
	}
}

func TestParseCount(t *testing.T) {
	for _, c := range []struct {
		text string
		want store.Limit // 0: refused
	}{
		{"1", 1}, {"9223372036854775807", 1<<63 - 1}, {"9223372036854775808", 0}, {"0", 0}, {"-1", 0}, {"1.5", 0}, {"1k", 0}, {"", 0},
	} {
		if got, err := parseCount(c.text); got != c.want || (err == nil) != (c.want > 0) {
			t.Errorf("%q: %v, %v, want %v", c.text, got, err, c.want)
		}
	}
}
