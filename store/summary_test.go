package store

import (
	"slices"
	"testing"
	"time"
	_ "time/tzdata"

	"mtagd/store/testenv"
)

func TestBucketsAreThoseOfTheZone(t *testing.T) {
	at := func(s string) *time.Time {
		at, ok := ParseTime(s)
		if !ok {
			t.Fatalf("time %s", s)
		}
		return &at
	}
	for _, c := range []struct {
		sentence string
		bucket   Bucket
		zone     string
		from, to string
		want     []string // the last one is the end
	}{
		{"hours", Hourly, "UTC", "2026-03-01T10:59:59.999999Z", "2026-03-01T12:00:00Z",
			[]string{"2026-03-01T10:00:00Z", "2026-03-01T11:00:00Z", "2026-03-01T12:00:00Z", "2026-03-01T13:00:00Z"}},
		{"hours before 1970", Hourly, "UTC", "1969-12-31T22:30:00Z", "1969-12-31T23:30:00Z",
			[]string{"1969-12-31T22:00:00Z", "1969-12-31T23:00:00Z", "1970-01-01T00:00:00Z"}},
		{"hours of a zone of half hours", Hourly, "Asia/Kolkata", "2026-03-01T10:00:00Z", "2026-03-01T10:30:00Z",
			[]string{"2026-03-01T09:30:00Z", "2026-03-01T10:30:00Z", "2026-03-01T11:30:00Z"}},
		{"hours where clocks go back by 30 minutes", Hourly, "Australia/Lord_Howe", "2026-04-04T14:10:00Z", "2026-04-04T16:00:00Z",
			[]string{"2026-04-04T14:00:00Z", "2026-04-04T15:00:00Z", "2026-04-04T15:30:00Z", "2026-04-04T16:30:00Z"}},
		{"hours where clocks go forward by 30 minutes", Hourly, "Australia/Lord_Howe", "2026-10-03T14:40:00Z", "2026-10-03T16:00:00Z",
			[]string{"2026-10-03T14:30:00Z", "2026-10-03T15:30:00Z", "2026-10-03T16:00:00Z", "2026-10-03T17:00:00Z"}},
		{"the hour that comes twice when summer ends", Hourly, "Europe/Berlin", "2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z",
			[]string{"2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z", "2026-10-25T03:00:00Z"}},
		{"a day of 23 hours", Daily, "Europe/Berlin", "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z",
			[]string{"2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z", "2026-03-30T22:00:00Z"}},
		{"a day of 25 hours", Daily, "Europe/Berlin", "2026-10-25T12:00:00Z", "2026-10-25T12:00:00Z",
			[]string{"2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"}},
		{"a day without midnight", Daily, "America/Sao_Paulo", "2018-11-03T12:00:00Z", "2018-11-05T12:00:00Z",
			[]string{"2018-11-03T03:00:00Z", "2018-11-04T03:00:00Z", "2018-11-05T02:00:00Z", "2018-11-06T02:00:00Z"}},
		{"a day that a zone left out", Daily, "Pacific/Apia", "2011-12-29T12:00:00Z", "2011-12-30T12:00:00Z",
			[]string{"2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"}},
		{"months from the 31st", Monthly, "UTC", "2026-01-31T00:00:00Z", "2026-03-01T00:00:00Z",
			[]string{"2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z"}},
		{"months of a zone", Monthly, "America/New_York", "2026-03-01T04:59:59Z", "2026-03-01T05:00:00Z",
			[]string{"2026-02-01T05:00:00Z", "2026-03-01T05:00:00Z", "2026-04-01T04:00:00Z"}},
		{"no buckets", NoBucket, "UTC", "2026-03-01T10:00:00Z", "2026-03-01T11:00:00Z",
			[]string{"2026-03-01T10:00:00Z", "2026-03-01T11:00:00Z"}},
	} {
		zone, err := time.LoadLocation(c.zone)
		testenv.Check(t, err)
		q := SummaryQuery{Bucket: c.bucket, Zone: zone, From: at(c.from), To: at(c.to)}
		starts, end, err := q.Starts(nil, nil)
		var got []string
		for _, s := range append(starts, end) {
			got = append(got, FormatTime(s))
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", c.sentence, got, err, c.want)
		}
	}
}

func TestBucketsWithoutARangeCoverAllEvents(t *testing.T) {
	day := func(d int) time.Time { return time.Date(2026, 3, d, 12, 0, 0, 0, time.UTC) }
	q := SummaryQuery{Bucket: Daily, Now: day(5)}
	if starts, _, err := q.Starts(nil, nil); err != nil || starts != nil {
		t.Errorf("without events there are the buckets %v, %v", starts, err)
	}
	if starts, _, err := q.Starts(new(day(2)), new(day(3))); err != nil || len(starts) != 4 {
		t.Errorf("the buckets are %v, %v; want those from the first event to now", starts, err)
	}
	if starts, _, err := q.Starts(new(day(2)), new(day(6))); err != nil || len(starts) != 5 {
		t.Errorf("the buckets are %v, %v; want those up to the last event, which is after now", starts, err)
	}
	q.From = new(day(6))
	if starts, _, err := q.Starts(new(day(2)), new(day(3))); err != nil || starts != nil {
		t.Errorf("a range that begins after now has the buckets %v, %v", starts, err)
	}
}

// Anybody who knows a tag id can send an event of the year 1. The first bucket has it.
func TestOneOldEventDoesNotMakeTooManyBuckets(t *testing.T) {
	now := time.Date(2026, 3, 5, 12, 0, 0, 0, time.UTC)
	kathmandu, err := time.LoadLocation("Asia/Kathmandu")
	testenv.Check(t, err)
	for _, b := range []Bucket{Hourly, Daily, Monthly} {
		q := SummaryQuery{Bucket: b, Now: now}
		starts, end, err := q.Starts(new(time.Time{}), new(now))
		if err != nil || len(starts) != MaxSummaryBuckets || !end.After(now) || starts[len(starts)-1].After(now) {
			t.Errorf("by %s there are %d buckets up to %v, %v", b, len(starts), end, err)
		}
		q.Zone, q.By = kathmandu, GroupByName
		if starts, end, err := q.Starts(new(time.Time{}), new(now)); err != nil || len(starts) < 30 || !end.After(now) {
			t.Errorf("by %s and name there are %d buckets up to %v, %v", b, len(starts), end, err)
		}
		q.From = new(time.Time{})
		if _, _, err := q.Starts(nil, nil); KindOf(err) != KindInvalid {
			t.Errorf("two thousand years by %s: %v, want KindInvalid", b, err)
		}
	}
}

func TestASummaryHasACost(t *testing.T) {
	for _, c := range []struct {
		is     string
		names  int
		years  int
		bucket Bucket
		zone   string
		ok     bool
	}{
		{"a year of days by the largest names, in a zone of quarters of an hour", 0, 1, Daily, "Asia/Kathmandu", true},
		{"416 days of hours by the largest names", 0, 1, Hourly, "Europe/Berlin", true},
		{"many names without buckets", 300, 26, NoBucket, "Asia/Kathmandu", true},
		{"many names by days of UTC", 300, 26, Daily, "UTC", true},
		{"many names by days, in a zone of quarters of an hour", 300, 5, Daily, "Asia/Kathmandu", false},
		{"many names by days of another zone", 300, 26, Daily, "Europe/Berlin", false},
	} {
		zone, err := time.LoadLocation(c.zone)
		testenv.Check(t, err)
		to := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		q := SummaryQuery{Bucket: c.bucket, Zone: zone, From: new(to.AddDate(-c.years, 0, 0)), To: &to, By: GroupByName}
		if c.names > 0 {
			q.Names = make([]string, c.names)
		}
		if _, _, err := q.Starts(nil, nil); c.ok != (err == nil) || !c.ok && KindOf(err) != KindInvalid {
			t.Errorf("%s: %v", c.is, err)
		}
	}
}

// Nobody can make a summary fail with an old event. Only who asks for what ended long ago must say when it began.
func TestASummaryWithoutARangeIsNotRefused(t *testing.T) {
	now := time.Date(2026, 3, 5, 12, 0, 0, 0, time.UTC)
	kathmandu, err := time.LoadLocation("Asia/Kathmandu")
	testenv.Check(t, err)
	for _, b := range []Bucket{NoBucket, Hourly, Daily, Monthly} {
		for _, zone := range []*time.Location{nil, kathmandu} {
			q := SummaryQuery{Merchants: make([]MerchantID, MaxSummaryMerchants), Names: make([]string, 300), Bucket: b, Zone: zone, Now: now, By: GroupByName}
			for _, to := range []*time.Time{nil, new(now.AddDate(0, 0, -2))} {
				q.To = to
				if starts, end, err := q.Starts(new(time.Time{}), new(now)); err != nil || len(starts) == 0 || to == nil && !end.After(now) {
					t.Errorf("by %q up to %v: %d buckets up to %v, %v", b, to, len(starts), end, err)
				}
			}
			q.To = new(now.AddDate(-10, 0, 0))
			if _, _, err := q.Starts(new(time.Time{}), new(now)); KindOf(err) != KindInvalid {
				t.Errorf("by %q up to ten years ago: %v, want KindInvalid", b, err)
			}
		}
	}
}
