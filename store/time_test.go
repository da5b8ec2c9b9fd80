package store

import (
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestParseTime(t *testing.T) {
	utc := func(year, month, day, hour, minute, second, nanos int) time.Time {
		return time.Date(year, time.Month(month), day, hour, minute, second, nanos, time.UTC)
	}
	for _, c := range []struct {
		is, text string
		want     time.Time
	}{
		{"a time in UTC", "2026-11-20T08:30:05Z", utc(2026, 11, 20, 8, 30, 5, 0)},
		{"lower case", "2026-11-20t08:30:05z", utc(2026, 11, 20, 8, 30, 5, 0)},
		{"an offset to the east", "2026-11-20T08:30:05+02:00", utc(2026, 11, 20, 6, 30, 5, 0)},
		{"an offset to the west", "2026-11-20T23:30:05-05:30", utc(2026, 11, 21, 5, 0, 5, 0)},
		{"an unknown local offset", "2026-11-20T08:30:05-00:00", utc(2026, 11, 20, 8, 30, 5, 0)},
		{"the largest offset", "2026-11-20T08:30:05+23:59", utc(2026, 11, 19, 8, 31, 5, 0)},
		{"a fraction", "2026-11-20T08:30:05.25Z", utc(2026, 11, 20, 8, 30, 5, 25e7)},
		{"nanoseconds", "2026-11-20T08:30:05.123456789+01:00", utc(2026, 11, 20, 7, 30, 5, 123456789)},
		{"digits after the ninth", "2026-11-20T08:30:05.1234567899999Z", utc(2026, 11, 20, 8, 30, 5, 123456789)},
		{"a leap second", "2016-12-31T23:59:60Z", utc(2017, 1, 1, 0, 0, 0, 0)},
		{"a leap second in another zone", "1990-12-31T15:59:60.5-08:00", utc(1991, 1, 1, 0, 0, 0, 5e8)},
		{"a leap day", "2024-02-29T00:00:00Z", utc(2024, 2, 29, 0, 0, 0, 0)},
		{"year 1", "0001-01-01T00:00:00Z", time.Time{}},
		{"year 0", "0000-01-01T00:00:00Z", utc(0, 1, 1, 0, 0, 0, 0)},
		{"the year before", "0000-01-01T00:00:00+00:01", utc(-1, 12, 31, 23, 59, 0, 0)},
		{"the last second", "9999-12-31T23:59:59Z", utc(9999, 12, 31, 23, 59, 59, 0)},
	} {
		got, ok := ParseTime(c.text)
		if !ok || !got.Equal(c.want) || got.Location() != time.UTC {
			t.Errorf("%s, %s: %v, %v; want %v", c.is, c.text, got, ok, c.want)
		}
	}
	for _, text := range []string{
		"", "2026", "2026-11-20", "2026-11-20T08:30:05", "2026-11-20 08:30:05Z", "20261120T083005Z", "2026-11-20T08:30Z",
		"2026-11-20T8:30:05Z", "2026-1-20T08:30:05Z", "2026-11-20T08:30:05,5Z", "2026-11-20T08:30:05.Z", "2026-11-20T08:30:05.5",
		"2026-00-20T08:30:05Z", "2026-13-20T08:30:05Z", "2026-11-00T08:30:05Z", "2026-11-31T08:30:05Z", "2026-02-29T08:30:05Z",
		"2026-11-20T24:00:00Z", "2026-11-20T08:60:05Z", "2026-11-20T08:30:61Z",
		"2026-11-20T08:30:60Z", "2026-11-20T23:58:60Z", "2026-11-20T22:59:60Z", "2026-11-20T23:59:60+01:00", "2026-02-29T23:59:60Z",
		"2026-11-20T08:30:05+24:00", "2026-11-20T08:30:05-24:00", "2026-11-20T08:30:05+02:60", "2026-11-20T08:30:05+99:99",
		"2026-11-20T08:30:05+0200", "2026-11-20T08:30:05+02", "2026-11-20T08:30:05+2:00", "2026-11-20T08:30:05 02:00", "2026-11-20T08:30:05+02-00",
		"2026-11-20T08:30:05Zz", "2026-11-20T08:30:05Z ", " 2026-11-20T08:30:05Z", "2026-11-20T08:30:05ZZ", "-026-11-20T08:30:05Z",
		"+2026-11-20T08:30:05Z", "2026-11-20T08:30:05\u200bZ", "2026-11-20T08:30:0\u0661Z", "2026-11-20T08:3-:05Z",
	} {
		if got, ok := ParseTime(text); ok {
			t.Errorf("%q is accepted as %v", text, got)
		}
	}
}

func TestParseTimeDoesNotAllocate(t *testing.T) {
	for text, isTime := range map[string]bool{"2026-11-20T08:30:05.123456+02:00": true, "not a time of any kind": false} {
		var ok bool
		if n := testing.AllocsPerRun(100, func() { _, ok = ParseTime(text) }); n != 0 || ok != isTime {
			t.Errorf("%q: %v allocations, read: %v", text, n, ok)
		}
	}
}

// laxities are what time.Parse accepts and RFC 3339 does not: an hour of one digit, a comma, offsets over 23:59.
var laxities = regexp.MustCompile(`T\d:|,|[+-](2[4-9]|[3-9]\d):\d\d$|[+-]\d\d:[6-9]\d$`)

// leapSecond matches second 60, which time.Parse does not accept.
var leapSecond = regexp.MustCompile(`^.{10}T\d\d:\d\d:60`)

// FuzzParseTime compares ParseTime with time.Parse. Apart from the differences that ParseTime documents, both accept the
// same texts and return the same times.
func FuzzParseTime(f *testing.F) {
	for _, seed := range []string{
		"2026-11-20T08:30:05Z", "2026-11-20t08:30:05.5z", "2026-11-20T08:30:05,5Z", "2026-11-20T8:30:05Z", "2016-12-31T23:59:60Z",
		"1990-12-31T15:59:60.123-08:00", "2026-11-20T08:30:05+24:00", "2026-11-20T08:30:05-23:60", "0000-02-29T00:00:00+23:59",
		"9999-12-31T23:59:59.9999999999-23:59", "2026-02-30T00:00:00Z", "2026-11-20T08:30:60Z",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := ParseTime(text)
		same := text
		if len(same) > 10 {
			same = same[:10] + strings.ToUpper(same[10:])
		}
		var extra time.Duration
		if leapSecond.MatchString(same) {
			same, extra = same[:17]+"59"+same[19:], time.Second
		}
		want, err := time.Parse(time.RFC3339, same)
		want = want.UTC().Add(extra)
		wantOK := err == nil && !laxities.MatchString(same)
		if extra > 0 && (want.Hour() != 0 || want.Minute() != 0) {
			wantOK = false
		}
		if ok != wantOK {
			t.Fatalf("%q: ParseTime accepts it: %v, want %v; time.Parse gives %v", text, ok, wantOK, err)
		}
		if ok && !got.Equal(want) {
			t.Errorf("%q: ParseTime gives %v, time.Parse %v", text, got, want)
		}
	})
}

func TestAppendTimeIsThatOfTheLibrary(t *testing.T) {
	for _, at := range []time.Time{
		{}, time.Unix(0, 0), time.Date(9999, 12, 31, 23, 59, 59, 999_999_999, time.UTC), time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(-1, 2, 3, 4, 5, 6, 0, time.UTC),
		time.Date(2026, 11, 26, 3, 4, 5, 6, time.FixedZone("", 5400)), time.Date(987, 10, 20, 13, 24, 35, 0, time.UTC),
	} {
		if got, want := string(AppendTime([]byte("at "), at)), at.UTC().Format("at 2006-01-02T15:04:05Z"); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
