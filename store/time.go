package store

import (
	"context"
	"strings"
	"time"
)

// Sleep waits, or returns the error of ctx when that ends before.
func Sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// FormatTime writes a time in the form that partners and operators read: ISO 8601 in UTC, in whole seconds (spec,
// Resources).
func FormatTime(t time.Time) string { return string(AppendTime(nil, t)) }

// AppendTime appends what FormatTime returns.
func AppendTime(b []byte, t time.Time) []byte { return t.UTC().AppendFormat(b, time.RFC3339) }

// ParseTime reads an RFC 3339 time (spec: "ISO 8601") and returns it in UTC; false when s is no such time.
//
// It follows the RFC where time.Parse with time.RFC3339 does not:
//   - T and Z may be in lower case.
//   - Second 60 is a leap second. It is valid only at 23:59 UTC, and gives the following midnight.
//   - The hour has two digits, the fraction begins with a point, and the offset is at most 23:59.
//
// Digits of the fraction after the ninth are cut off. An offset can move the result into year -1 or year 10000.
func ParseTime(s string) (time.Time, bool) {
	if len(s) < len("2006-01-02T15:04:05Z") || s[4] != '-' || s[13] != ':' || s[19] == ',' {
		return time.Time{}, false // most other texts: the error of time.Parse would allocate
	}
	isLeap := s[16:19] == ":60"
	if isLeap {
		s = s[:17] + "59" + s[19:]
	}
	t, err := time.Parse(time.RFC3339, strings.ToUpper(s))
	zone := s[len(s)-len("+02:00"):]
	if err != nil || zone[5]|0x20 != 'z' && (zone[1:3] > "23" || zone[4:] > "59") {
		return time.Time{}, false
	}
	t = t.UTC()
	if !isLeap {
		return t, true
	}
	t = t.Add(time.Second)
	return t, t.Hour() == 0 && t.Minute() == 0
}
