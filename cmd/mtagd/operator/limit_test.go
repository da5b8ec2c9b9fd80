package operator

import (
	"testing"

	"mtagd/store"
)

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
