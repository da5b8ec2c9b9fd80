package store

import (
	"context"
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
func AppendTime(b []byte, t time.Time) []byte {
	t = t.UTC()
	year, month, day := t.Date()
	if year < 0 || year > 9999 {
		return t.AppendFormat(b, "2006-01-02T15:04:05Z")
	}
	hour, minute, second := t.Clock()
	two := func(n int, end byte) { b = append(b, byte('0'+n/10), byte('0'+n%10), end) }
	b = append(b, byte('0'+year/1000), byte('0'+year/100%10))
	two(year%100, '-')
	two(int(month), '-')
	two(day, 'T')
	two(hour, ':')
	two(minute, ':')
	two(second, 'Z')
	return b
}

// ParseTime reads an RFC 3339 time and returns it in UTC. It returns false when s is no such time. It does not allocate.
//
// It follows the RFC where time.Parse with time.RFC3339 does not:
//   - T and Z may be in lower case.
//   - Second 60 is a leap second. It is valid only at 23:59 UTC, and gives the following midnight.
//   - The hour has two digits, the fraction begins with a point, and the offset is at most 23:59.
//
// Digits of the fraction after the ninth are cut off. An offset can move the result into year -1 or year 10000.
func ParseTime(s string) (time.Time, bool) {
	const upToSeconds = len("2006-01-02T15:04:05")
	if len(s) < upToSeconds+len("Z") ||
		s[4] != '-' || s[7] != '-' || s[10] != 'T' && s[10] != 't' || s[13] != ':' || s[16] != ':' {
		return time.Time{}, false
	}
	nanos, zone, ok := parseFraction(s[upToSeconds:])
	offset, okZone := parseZone(zone)
	year, okYear := parseDigits(s[0:4], 0, 9999)
	month, okMonth := parseDigits(s[5:7], 1, 12)
	day, okDay := parseDigits(s[8:10], 1, 31)
	hour, okHour := parseDigits(s[11:13], 0, 23)
	minute, okMinute := parseDigits(s[14:16], 0, 59)
	second, okSecond := parseDigits(s[17:19], 0, 60)
	if !ok || !okZone || !okYear || !okMonth || !okDay || !okHour || !okMinute || !okSecond {
		return time.Time{}, false
	}
	midnight := time.Date(year, time.Month(month), day, 0, 0, 0, 0, time.UTC)
	if midnight.Day() != day {
		return time.Time{}, false // the month has fewer days
	}
	t := midnight.Add(time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute - offset +
		time.Duration(second)*time.Second)
	if second == 60 && (t.Hour() != 0 || t.Minute() != 0) {
		return time.Time{}, false
	}
	return t.Add(nanos), true
}

// parseFraction reads the fraction of a second, if s begins with one, and returns what follows it.
func parseFraction(s string) (fraction time.Duration, rest string, ok bool) {
	if s[0] != '.' {
		return 0, s, true
	}
	i := 1
	for unit := 100 * time.Millisecond; i < len(s) && s[i] >= '0' && s[i] <= '9'; i++ {
		fraction += time.Duration(s[i]-'0') * unit
		unit /= 10
	}
	return fraction, s[i:], i > 1
}

// parseZone reads Z or an offset from UTC, such as +02:00.
func parseZone(s string) (offset time.Duration, ok bool) {
	if s == "Z" || s == "z" {
		return 0, true
	}
	if len(s) != len("+02:00") || s[0] != '+' && s[0] != '-' || s[3] != ':' {
		return 0, false
	}
	hours, okHours := parseDigits(s[1:3], 0, 23)
	minutes, okMinutes := parseDigits(s[4:6], 0, 59)
	offset = time.Duration(hours)*time.Hour + time.Duration(minutes)*time.Minute
	if s[0] == '-' {
		offset = -offset
	}
	return offset, okHours && okMinutes
}

// parseDigits reads a number that consists of digits only. It returns false unless least ≤ n ≤ most.
func parseDigits(s string, least, most int) (n int, ok bool) {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n, n >= least && n <= most
}
